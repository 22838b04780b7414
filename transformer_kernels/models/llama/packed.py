# SPDX-License-Identifier: MIT
"""Layers whose weight stays in the few bits of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...functional import dequantize_weight, quantized_linear
from ...nn.quantized_linear import QuantizedLinear
from .blocks import Blocks


class OffsetLinear(QuantizedLinear):
    """A quantised linear layer whose weight is ``number * scale + offset``: GGUF's Q4_1 and Q4_K.

    The offsets of a group multiply the sum of its inputs, which is a second, small product.

    Args:
        args: the arguments of :class:`transformer_kernels.nn.QuantizedLinear`, by position.
        kwargs: its arguments by keyword.

    ``offsets`` (N, K / group_size), float32, is a buffer beside ``packed`` and ``scales``.

    >>> layer = tfk.models.OffsetLinear(64, 32, bias=False, bits=4, group_size=32)
    >>> layer(torch.randn(1, 64)).shape, layer.offsets.shape
    (torch.Size([1, 32]), torch.Size([32, 2]))
    """

    offsets: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("offsets", torch.zeros_like(self.scales, dtype=torch.float32))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        sums = input.unflatten(-1, (self.offsets.shape[1], -1)).sum(-1, dtype=torch.float32)
        y = quantized_linear(input, self.packed, self.scales, self.bias, backend=self.backend)
        shift = nn.functional.linear(sums, self.offsets)
        return y + shift if y.dtype is torch.float32 else (y.float() + shift).to(y.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        offsets = self.offsets
        super()._apply(fn, recurse)
        self.offsets = offsets.to(self.offsets.device)
        return self


class PackedEmbedding(nn.Module):
    """A table of rows of 8 or 4 bits, which the ``layer`` holds that has them as its weight.

    Args:
        layer: the linear layer; a head that is tied to the table.
        dtype: dtype of the result.

    >>> head = tfk.nn.QuantizedLinear(64, 100, bias=False, bits=8, group_size=32)
    >>> tfk.models.PackedEmbedding(head, torch.float32)(torch.tensor([[3, 5]])).shape
    torch.Size([1, 2, 64])
    """

    def __init__(self, layer: QuantizedLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, tokens: Tensor) -> Tensor:
        rows = weight_rows(self.layer, tokens.flatten())
        return rows.to(self.dtype).unflatten(0, tokens.shape)


def weight_rows(layer: QuantizedLinear, rows: Tensor | slice = slice(None)) -> Tensor:
    """Rows of the layer's weight, in float32."""
    wide = dequantize_weight(layer.packed[rows], layer.scales[rows])
    if not isinstance(layer, OffsetLinear):
        return wide
    offsets = layer.offsets[rows].unsqueeze(-1)
    return (wide.unflatten(-1, (offsets.shape[1], -1)) + offsets).flatten(1)


def linear_of(blocks: Blocks, bias: nn.Parameter | None) -> QuantizedLinear:
    """The linear layer that reads the blocks as they are. Numbers that have offsets are moved from
    0 to 15 to -8 to 7, where the kernels expect them."""
    rows, terms = blocks.numbers.shape
    kind = QuantizedLinear if blocks.offsets is None else OffsetLinear
    layer = kind(  # without rows, for the tensors that it makes are replaced
        terms, 0, bias=False, bits=blocks.bits, group_size=terms // blocks.scales.shape[1],
        scale_dtype=blocks.scales.dtype,
    )  # fmt: skip
    layer.out_features = rows
    numbers = blocks.numbers
    if isinstance(layer, OffsetLinear) and blocks.offsets is not None:
        numbers = numbers - 8
        layer.offsets = blocks.offsets + 8 * blocks.scales.float()
    layer.packed = numbers if blocks.bits == 8 else _pairs(numbers)
    layer.scales = blocks.scales.contiguous()
    layer.bias = bias
    return layer


def _pairs(numbers: Tensor) -> Tensor:
    """Two numbers a byte, that of the even column in its low half."""
    return ((numbers[:, 0::2] & 15) | (numbers[:, 1::2] << 4)).view(torch.uint8)
