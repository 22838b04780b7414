# SPDX-License-Identifier: MIT
"""The random bits of dropout in PyTorch operations: the same elements drop as in every kernel.

Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_PER_CALL = 8
VALUES = 1 << 16


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits of an int64."""
    return x & _LOW, (x >> 32) & _LOW


def _words(key: Tensor, counter: Tensor, offset: Tensor) -> list[Tensor]:
    """Four words of 32 random bits for each counter; products wrap around, as those of C do."""
    key0, key1 = _halves(key)
    x0, x1 = _halves(counter)
    x2, x3 = (half.expand_as(counter) for half in _halves(offset))
    for _ in range(_ROUNDS):
        low_a, high_a = _halves(x0 * _FACTORS[0])
        low_b, high_b = _halves(x2 * _FACTORS[1])
        x0, x1, x2, x3 = high_b ^ x1 ^ key0, low_b, high_a ^ x3 ^ key1, low_a
        key0, key1 = (key0 + _WEYL[0]) & _LOW, (key1 + _WEYL[1]) & _LOW
    return [x0, x1, x2, x3]


def threshold(dropout: float) -> int:
    """An element is dropped where its 16 bits are below this."""
    return round(dropout * VALUES)


def factors(rows: Tensor, keys: int, pitch: int, dropout: float, seed: Tensor) -> Tensor:
    """0 where an element is dropped, else 1 over the probability of keeping: (*rows, keys).

    ``rows`` are the places of the queries in the log-sum-exp, ``pitch`` the rows of k.
    """
    calls_per_row = -(-pitch // _PER_CALL)
    calls = torch.arange(-(-keys // _PER_CALL), device=rows.device)
    key, offset = seed.to(rows.device).unbind()
    words = _words(key, rows.unsqueeze(-1) * calls_per_row + calls, offset)
    numbers = torch.stack([half for w in words for half in (w & 0xFFFF, w >> 16)], -1)
    below = threshold(dropout)
    kept = numbers.flatten(-2)[..., :keys] >= below
    return kept.double() * (VALUES / max(VALUES - below, 1))
