# SPDX-License-Identifier: MIT
"""States of 16 and 8 bits in PyTorch operations, with the random bits of the kernels.

The codes are those of ``csrc/optimizer/codes.h``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .._philox import words_of

BLOCK = 256  # elements of 8-bit states that share a scale
FIRST_MOMENT, SECOND_MOMENT, PARAM = range(3)  # what random bits are for
_PER_COUNTER = 8


class Draw(NamedTuple):
    """Where the random bits of a tensor come from."""

    seed: int
    number: int  # of the tensor
    step: Tensor

    def bits(self, use: int, count: int) -> Tensor:
        """16 bits for each of ``count`` elements, as int64."""
        device = self.step.device
        counters = torch.arange(-(-count // _PER_COUNTER), device=device)
        high = (use << 62) + (self.number << 40)
        counters += high - (1 << 64) if high >= 1 << 63 else high
        key = torch.tensor(self.seed, device=device)
        words = words_of(counters, torch.stack((key, self.step.reshape(()).long())))
        halves = [half for w in words for half in (w & 0xFFFF, w >> 16)]
        return torch.stack(halves, -1).flatten()[:count]


def round_randomly(x: Tensor, bits: Tensor) -> Tensor:
    """A float32 tensor as bfloat16: up where the bits that are lost and the random ones carry."""
    raw = x.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    upper = (raw + bits.reshape(x.shape)) >> 16
    upper = torch.where(x.isnan(), raw >> 16 | 0x40, upper)
    return (upper - ((upper & 0x8000) << 1)).to(torch.int16).view(torch.bfloat16)


@cache
def _values(signed: bool) -> list[float]:
    bits = 7 if signed else 8
    magnitudes = [0.0]
    for code in range(1, 1 << bits):
        digit = code.bit_length() - 1
        magnitudes.append(10.0 ** (digit - bits) * (1 + 9 * (code / (1 << digit) - 1)))
    return magnitudes


def scales_of(codes: Tensor) -> Tensor:
    """A scale for each block of a tensor of codes, as yet 0."""
    return torch.zeros(-(-codes.numel() // BLOCK), device=codes.device)


def decode(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """The numbers that a flat tensor of codes and the scales of its blocks stand for."""
    values = torch.tensor(_values(signed), device=codes.device)
    if signed:  # -1 is the last byte
        values = torch.cat((values, -values[:1], -values.flip(0)[:-1]))
    return values[codes.long()] * scales.repeat_interleave(BLOCK)[: codes.numel()]


def encode(x: Tensor, bits: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """The codes of a flat float32 tensor, and the scales of its blocks."""
    values = torch.tensor(_values(signed), device=x.device)
    blocks = torch.nn.functional.pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1) + (blocks - blocks).sum(1)
    scales = largest / values[-1]
    y = blocks.abs() / torch.where(scales > 0, scales, 1.0)[:, None]
    below = (torch.searchsorted(values, y.nan_to_num(), right=True) - 1).clamp(0, len(values) - 2)
    place = below + (y - values[below]) / (values[below + 1] - values[below])
    chance = torch.nn.functional.pad(bits, (0, -x.numel() % BLOCK)).view(-1, BLOCK) / 65536
    code = (place + chance).nan_to_num().long().clamp(max=len(values) - 1)
    code = torch.where(blocks < 0, -code, code) if signed else code.clamp(min=1) * (blocks > 0)
    code = torch.where(scales.isnan()[:, None], 1, code)
    return (code.flatten()[: x.numel()] & 255).to(torch.uint8), scales
