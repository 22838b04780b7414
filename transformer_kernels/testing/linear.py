# SPDX-License-Identifier: MIT
"""Arguments of linear layers, for the tests of every declared op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .inputs import randn

_ROWS, _TERMS, _COLS, _DOWN = (2, 3), 8, 5, 7

BAD = {
    "activation": {"below": -1, "above": 99},
    "recompute": {"below": -1, "above": 3},
    **{name: {"below": -3} for name in ("y_route", "dx_route", "dweight_route")},
}


def combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """With and without a bias, with the weight stored by rows and by columns."""
    for has_bias in (True, False):
        for by_columns in (False, True):
            weight = randn((_COLS, _TERMS), torch.float32, device)
            yield {
                "x": randn((*_ROWS, _TERMS), torch.float32, device),
                "weight": weight.t().contiguous().t() if by_columns else weight,
                "bias": randn((_COLS,), torch.float32, device) if has_bias else None,
            }


def act_combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    for number, given in enumerate(combinations(device)):
        yield given | {"activation": number}


def routed_combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """A choice for each product: our kernel, PyTorch's, and an algorithm of cuBLASLt's."""
    for number, given in enumerate(combinations(device)):
        names = ("y_route", "dx_route", "dweight_route")
        yield given | {name: (number + i) % 3 - 2 for i, name in enumerate(names)}


def mlp_combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """Each level, with our products and with PyTorch's; the last has no second layer."""
    for level, has_biases in enumerate((True, False, True)):
        given = next(combinations(device))
        yield given | {
            "bias": given["bias"] if has_biases else None,
            "down_weight": None if level == 2 else randn((_DOWN, _COLS), torch.float32, device),
            "down_bias": None if level else randn((_DOWN,), torch.float32, device),
            "activation": level,
            "recompute": level,
            "packed": level < 2,
        }


def gated_mlp_combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """As for the MLP; the last has gate and up packed in one weight."""
    for given in mlp_combinations(device):
        up_weight = randn((_COLS, _TERMS), torch.float32, device)
        up_bias = None if given["bias"] is None else randn((_COLS,), torch.float32, device)
        is_pair = given["recompute"] == 1
        weight = torch.cat((given["weight"], up_weight)) if is_pair else given["weight"]
        yield {
            "x": given["x"],
            "weight": weight,
            "up_weight": None if is_pair else up_weight,
            "bias": given["bias"],
            "up_bias": up_bias,
            **{name: value for name, value in given.items() if name not in ("x", "weight", "bias")},
        }


QUANTIZED_GOOD = {"scales": ("half",)}


def quantized_combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """With and without a bias, in 8 and in 4 bits."""
    for has_bias in (True, False):
        for whole in (True, False):
            numbers = torch.arange(_COLS * _TERMS, device=device).view(_COLS, _TERMS) * 7 - 128
            yield {
                "x": randn((*_ROWS, _TERMS), torch.float32, device),
                "packed": numbers.to(torch.int8) if whole else numbers[:, ::2].to(torch.uint8),
                "scales": randn((_COLS, _TERMS // 2), torch.float32, device),
                "bias": randn((_COLS,), torch.float32, device) if has_bias else None,
            }


GROUPED_GOOD: dict[str, tuple[str, ...]] = {}


def grouped_combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """Three groups, one of them without rows; with and without a bias."""
    for has_bias in (True, False):
        yield {
            "x": randn((6, _TERMS), torch.float32, device),
            "weight": randn((3, _COLS, _TERMS), torch.float32, device),
            "bias": randn((3, _COLS), torch.float32, device) if has_bias else None,
            "offsets": torch.tensor((0, 4, 4, 6), dtype=torch.int32, device=device),
        }
