# SPDX-License-Identifier: MIT
"""Numbers in the formats of GGUF: blocks of few bits that share a scale, and often an offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from .gguf_file import Stored

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Blocks(NamedTuple):
    """A weight (N, K): ``numbers * scales + offsets``, each scale for K / G neighbours."""

    bits: int
    numbers: Tensor  # int8, (N, K): 0 to 15 with offsets, signed without
    scales: Tensor  # (N, G)
    offsets: Tensor | None  # float32, (N, G)

    def widened(self) -> Tensor:
        """The weight in float32, computed as llama.cpp computes it."""
        rows, groups = self.scales.shape
        numbers = self.numbers.float().view(rows, groups, -1)
        wide = numbers * self.scales.float().unsqueeze(-1)
        return (wide if self.offsets is None else wide + self.offsets.unsqueeze(-1)).flatten(1)


def _halves(bytes_: Tensor) -> Tensor:
    """Pairs of bytes (..., 2 n) as float16, (..., n)."""
    return bytes_.contiguous().view(torch.float16)


def _nibbles(bytes_: Tensor) -> Tensor:
    """The low halves of the bytes, then the high ones: (..., n) -> (..., 2 n)."""
    return torch.cat((bytes_ & 15, bytes_ >> 4), -1)


def _int8(numbers: Tensor) -> Tensor:
    return numbers.view(torch.int8).flatten(1)


def _q8_0(blocks: Tensor) -> Blocks:
    """A float16 scale and 32 numbers of 8 bits."""
    return Blocks(8, _int8(blocks[..., 2:].contiguous()), _halves(blocks[..., :2])[..., 0], None)


def _q4_0(blocks: Tensor) -> Blocks:
    """A float16 scale and 32 numbers of 4 bits, above -8."""
    numbers = _int8(_nibbles(blocks[..., 2:])) - 8
    return Blocks(4, numbers, _halves(blocks[..., :2])[..., 0], None)


def _q4_1(blocks: Tensor) -> Blocks:
    """A scale and an offset in float16, and 32 numbers of 4 bits."""
    scales, offsets = _halves(blocks[..., :4]).unbind(-1)
    return Blocks(4, _int8(_nibbles(blocks[..., 4:])), scales, offsets.float())


def _q4_k(blocks: Tensor) -> Blocks:
    """Eight groups of 32 numbers of 4 bits. Their scales and offsets have 6 bits each, packed into
    12 bytes, and two float16 factors."""
    factor, offset_factor = _halves(blocks[..., :4]).float().split(1, -1)
    low, middle, high = blocks[..., 4:16].split(4, -1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), -1).float()
    offsets = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), -1).float()
    numbers = _nibbles(blocks[..., 16:].unflatten(-1, (4, 32)))
    return Blocks(
        4, _int8(numbers), (factor * scales).flatten(1), -(offset_factor * offsets).flatten(1)
    )


def _q6_k(blocks: Tensor) -> Blocks:
    """16 groups of 16 numbers of 6 bits, above -32; scales of 8 bits have a float16 factor."""
    low = blocks[..., :128].unflatten(-1, (2, 64))
    high = blocks[..., 128:192].unflatten(-1, (2, 32))
    quarters = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], -1)
    numbers = (_nibbles(low) | (quarters << 4)).view(torch.int8) - 32
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float()
    factor = _halves(blocks[..., 208:]).float()
    return Blocks(8, numbers.flatten(1), (factor * scales).flatten(1), None)


_READERS: dict[str, Callable[[Tensor], Blocks]] = {
    "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q6_K": _q6_k,
}  # fmt: skip


def blocks_of(stored: Stored) -> Blocks | None:
    """The blocks of a tensor; None for a format that no kernel reads."""
    if stored.format.name not in _READERS:
        return None
    return _READERS[stored.format.name](stored.rows.unflatten(-1, (-1, stored.format.size)))


def widened(stored: Stored) -> Tensor:
    """The tensor's numbers, in float32 unless it stores 16 bits."""
    dtype = _PLAIN.get(stored.format.name)
    if dtype is not None:
        return stored.rows.view(dtype).view(stored.shape)
    blocks = blocks_of(stored)
    return (_by_gguf(stored) if blocks is None else blocks.widened()).view(stored.shape)


def _by_gguf(stored: Stored) -> Tensor:
    """Formats that are read nowhere here: the package ``gguf`` widens them."""
    import gguf

    kind = gguf.GGMLQuantizationType[stored.format.name]
    try:
        numbers = gguf.dequantize(stored.rows.numpy(), kind)
    except NotImplementedError:
        raise ArgumentValueError(
            f"{stored.name} has the format {stored.format.name}, which cannot be read"
        ) from None
    return torch.from_numpy(numbers)
