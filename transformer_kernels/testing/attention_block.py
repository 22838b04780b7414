# SPDX-License-Identifier: MIT
"""Arguments of attention_block, for the tests of every declared op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .inputs import randn

_BATCH, _TIME, _CHANNELS, _HEADS, _HEAD_DIM = 2, 3, 8, 4, 2

BAD = {
    "num_heads": {"below": 0},
    "num_kv_heads": {"below": 0, "above": 3},
    "norm": {"below": -1, "above": 2},
    "recompute": {"below": -1, "above": 2},
}


def combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """With and without parameters, dropout and shared heads, with each norm and level."""

    def draw(*sizes: int) -> torch.Tensor:
        return randn(sizes, torch.float32, device)

    for number, full in enumerate((True, False, True)):
        kv_heads = _HEADS >> number
        rows = (_HEADS + 2 * kv_heads) * _HEAD_DIM
        seed = torch.tensor([7, 3], device=device)
        yield {
            "x": draw(_BATCH, _TIME, _CHANNELS),
            "residual": draw(_BATCH, _TIME, _CHANNELS),
            "qkv_weight": draw(rows, _CHANNELS) / 4,
            "qkv_bias": draw(rows) if full else None,
            "out_weight": draw(_HEADS * _HEAD_DIM, _CHANNELS).t() / 4,
            "out_bias": draw(_CHANNELS) if full else None,
            "norm_weight": draw(_CHANNELS) if full else None,
            "norm_bias": draw(_CHANNELS) if full else None,
            "attention_seed": seed if full else None,
            "seed": seed + 1 if full else None,
            "num_heads": _HEADS,
            "num_kv_heads": kv_heads,
            "causal": number < 2,
            "scale": 0.5,
            "attention_p": 0.25 if full else 0.0,
            "p": 0.5 if full else 0.0,
            "eps": 1e-5,
            "norm": number // 2,
            "recompute": number % 2,
            "packed": number > 1,
        }
