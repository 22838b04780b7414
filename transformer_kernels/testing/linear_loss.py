# SPDX-License-Identifier: MIT
"""Arguments of linear_cross_entropy, for the tests of every declared op."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .inputs import randn

_ROWS, _TERMS, _CLASSES = 3, 8, 5

BAD = {
    "label_smoothing": {"above": 1.5},
    "reduction": {"above": 3},
    "chunk_bytes": {"below": -1},
}


def combinations(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """With and without a bias and class weights, each in another number of chunks."""
    for number, (bias, weight) in enumerate(itertools.product((True, False), repeat=2)):
        yield {
            "x": randn((_ROWS, _TERMS), torch.float32, device),
            "linear_weight": randn((_CLASSES, _TERMS), torch.float32, device),
            "linear_bias": randn((_CLASSES,), torch.float32, device) if bias else None,
            "target": torch.arange(_ROWS, device=device) % _CLASSES,
            "weight": randn((_CLASSES,), torch.float32, device).abs() if weight else None,
            "ignore_index": 0,
            "label_smoothing": 0.1 * number,
            "z_loss": 0.01 * number,
            "softcap": 0.5 * number,
            "reduction": number % 3,
            "wide": number % 2 == 1,
            "chunk_bytes": 4 * _CLASSES * number,
            "float32_sums": False,
            "packed": False,
            "with_entropy": number % 2 == 1,
            "with_accuracy": number > 1,
        }
