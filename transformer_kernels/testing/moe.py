# SPDX-License-Identifier: MIT
"""Arguments of the ops of a mixture of experts that fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .inputs import randn

Values = dict[str, Any]

# The numbers of a call, for logits (3, 8).
_ROUTER: Values = {
    "expert_bias": None, "seed": None, "top_k": 2, "groups": 1, "top_groups": 1, "sequences": 0,
    "score": 0, "renormalize": True, "scale": 1.0, "jitter": 0.0, "noise": 0.0,
}  # fmt: skip


def router_combinations(device: str) -> Iterator[Values]:
    def given(**values: Any) -> Values:
        return {"x": randn((3, 8), torch.float32, device), **_ROUTER, **values}

    bias, seed = randn((8,), torch.float32, device), torch.tensor([7, 3], device=device)
    yield given(expert_bias=bias, seed=seed, jitter=0.5, sequences=3, score=1)
    yield given(expert_bias=bias, groups=4, top_groups=2, score=1, scale=2.5)
    yield given(sequences=1, renormalize=False)
    yield given(score=2)


# Values that the ops refuse beyond wrong types.
ROUTER_BAD: dict[str, dict[str, Any]] = {
    "top_k": {"none": 0, "more than experts": 9, "too many": 17},
    "groups": {"none": 0, "no divisor": 3, "too many": 64},
    "top_groups": {"none": 0, "more than groups": 5},
    "sequences": {"negative": -1, "no divisor": 2},
    "score": {"below": -1, "above": 3},
}


def _places(device: str) -> torch.Tensor:
    """The places of four tokens with two experts each, one of them dropped."""
    places = [[3, 0], [1, 6], [4, -8], [5, 2]]
    return torch.tensor(places, dtype=torch.int32, device=device)


def permute_combinations(device: str) -> Iterator[Values]:
    yield {"x": randn((4, 8), torch.float32, device), "places": _places(device)}


def unpermute_combinations(device: str) -> Iterator[Values]:
    for weights in (randn((4, 2), torch.float32, device), None):
        x = randn((8, 8), torch.float32, device)
        yield {"x": x, "places": _places(device), "weights": weights}


# Values that the ops take, or refuse under another argument's name.
DISPATCH_GOOD: dict[str, tuple[str, ...]] = {"places": ("integers", "short")}


EXPERTS_BAD: dict[str, dict[str, Any]] = {"activation": {"below": -1, "above": 99}}
EXPERTS_GOOD: dict[str, tuple[str, ...]] = {}


def experts_combinations(device: str) -> Iterator[Values]:
    """Three experts with hidden layers of six features: gated with two weights and in one weight,
    and not gated."""
    offsets = torch.tensor((0, 3, 5, 8), dtype=torch.int32, device=device)
    tokens = torch.tensor((0, 1, 2, 3, 0, 2, 3, 1), dtype=torch.int32, device=device)
    places = torch.tensor(((4, 0), (1, 7), (2, 5), (3, 6)), dtype=torch.int32, device=device)

    def made(*shape: int) -> torch.Tensor:
        return randn(shape, torch.float32, device)

    for gated, in_one, biased in (
        (True, False, True), (True, True, True), (False, False, True), (True, False, False),
    ):  # fmt: skip
        yield {
            "x": made(4, 8), "weights": made(4, 2).abs(), "offsets": offsets, "tokens": tokens,
            "places": places, "weight": made(3, 12 if in_one else 6, 8),
            "up_weight": made(3, 6, 8) if gated and not in_one else None,
            "bias": made(3, 6) if biased else None,
            "up_bias": made(3, 6) if biased and gated else None,
            "down_weight": made(3, 5, 6), "down_bias": made(3, 5) if biased else None,
            "activation": 2, "gated": gated,
        }  # fmt: skip
