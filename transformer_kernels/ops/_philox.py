# SPDX-License-Identifier: MIT
"""The random bits of dropout in PyTorch operations; the same elements drop as in every kernel.

The generator is Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch import has_dispatch_mode, is_eager

_LOW = 0xFFFFFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_PER_CALL = 8
VALUES = 1 << 16
_MOST_SEED = 2**63 - 1
_MIX = 0x9E3779B97F4A7C15  # odd, so multiplying by it modulo a power of 2 loses no bits
_OFFSET_STEP = 4  # PyTorch's own step; offsets are multiples of it


def fresh_seed(device: torch.device) -> Tensor:
    """Draws a seed and an offset for dropout from the device's generator.

    Outside of graphs this launches no kernel. A graph draws new ones at each replay.
    """
    plain = device.type == "cuda" and is_eager() and not has_dispatch_mode()
    if not plain or torch.cuda.is_current_stream_capturing():
        return torch.randint(_MOST_SEED, (2,), dtype=torch.int64, device=device)
    generator = torch.cuda.default_generators[device.index]
    offset = generator.get_offset()
    generator.set_offset(offset + _OFFSET_STEP)
    # PyTorch's kernels draw from the generator's seed, so ours use another one.
    key = (generator.initial_seed() * _MIX + _MIX) & _MOST_SEED
    return torch.tensor((key, offset))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits of an int64."""
    return x & _LOW, (x >> 32) & _LOW


def words_at(key: Tensor, counter: Tensor, offset: Tensor) -> list[Tensor]:
    """Four words of 32 random bits for each counter; products wrap around as in C."""
    key0, key1 = _halves(key)
    x0, x1 = _halves(counter)
    x2, x3 = (half.expand_as(counter) for half in _halves(offset))
    for _ in range(_ROUNDS):
        low_a, high_a = _halves(x0 * _FACTORS[0])
        low_b, high_b = _halves(x2 * _FACTORS[1])
        x0, x1, x2, x3 = high_b ^ x1 ^ key0, low_b, high_a ^ x3 ^ key1, low_a
        key0, key1 = (key0 + _WEYL[0]) & _LOW, (key1 + _WEYL[1]) & _LOW
    return [x0, x1, x2, x3]


def words_of(counters: Tensor, seed: Tensor) -> list[Tensor]:
    """Four words of 32 random bits for each counter, under a seed and an offset."""
    key, offset = seed.to(counters.device).unbind()
    return words_at(key, counters, offset)


def _numbers(counters: Tensor, seed: Tensor) -> Tensor:
    """The 16-bit numbers of each counter, side by side along the last dimension."""
    words = words_of(counters, seed)
    return torch.stack([half for w in words for half in (w & 0xFFFF, w >> 16)], -1).flatten(-2)


def threshold(dropout: float) -> int:
    """Elements whose 16 bits are below this number are dropped."""
    return round(dropout * VALUES)


def scale(dropout: float) -> float:
    """The factor of kept elements, which makes up for dropped ones; 1 where all are dropped."""
    below = threshold(dropout)
    return VALUES / (VALUES - below) if below < VALUES else 1.0


class SeedOfPart(NamedTuple):
    """The seed of a whole tensor, for a formula that computes a part of it."""

    seed: Tensor
    whole: tuple[int, ...]  # the shape
    first: tuple[int, ...]  # the part's first index in each dimension


def _kept_of_part(shape: Sequence[int], below: int, part: SeedOfPart, device: Any) -> Tensor:
    """A mask of the elements of a part: those that the whole tensor would keep."""
    strides = [math.prod(part.whole[dim + 1 :]) for dim in range(len(shape))]
    split = [dim for dim in range(len(shape)) if shape[dim] != part.whole[dim]]
    last = split[-1] if split else 0
    begin = torch.tensor([part.first[last] * strides[last]], device=device)
    for dim in range(last):
        indices = part.first[dim] + torch.arange(shape[dim], device=device)
        begin = (begin.unsqueeze(-1) + indices * strides[dim]).flatten()
    length = math.prod(shape[last:])  # of the elements that follow each other
    begin = begin.unsqueeze(-1)
    calls = begin // _PER_CALL + torch.arange(length // _PER_CALL + 2, device=device)
    places = begin % _PER_CALL + torch.arange(length, device=device)
    return (_numbers(calls, part.seed).gather(-1, places) >= below).reshape(shape)


def kept(
    shape: Sequence[int], dropout: float, seed: Tensor | SeedOfPart | None, device: torch.device
) -> Tensor:
    """A mask of the elements to keep in a tensor of ``shape``; ``seed`` is read only for 0 <
    dropout < 1."""
    below = threshold(dropout)
    if below in (0, VALUES) or seed is None:
        return torch.full(shape, below == 0, device=device)
    if isinstance(seed, SeedOfPart):
        return _kept_of_part(shape, below, seed, device)
    count = math.prod(shape)
    counters = torch.arange(-(-count // _PER_CALL), device=device)
    return (_numbers(counters, seed)[:count] >= below).reshape(shape)


def factors(rows: Tensor, keys: int, pitch: int, dropout: float, seed: Tensor) -> Tensor:
    """Dropout's factor of each element (*rows, keys): 0 if it is dropped, else 1 over the
    probability of keeping.

    ``rows`` are the queries' positions in the log-sum-exp, ``pitch`` is the number of rows of k.
    """
    calls_per_row = -(-pitch // _PER_CALL)
    calls = torch.arange(-(-keys // _PER_CALL), device=rows.device)
    numbers = _numbers(rows.unsqueeze(-1) * calls_per_row + calls, seed)
    return (numbers[..., :keys] >= threshold(dropout)).double() * scale(dropout)
