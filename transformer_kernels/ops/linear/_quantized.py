# SPDX-License-Identifier: MIT
"""Declares linear layers with quantised weights, and has their formula."""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor

from .._declare import Op, Way, Ways
from .._declare_arguments import Argument, Given, Result, Rows
from .._parallel import ONCE, SUMMED, rows
from .._register import declare
from .._work import PRODUCT, rows_of
from . import _formula
from ._arguments import Bias, numbers_a_row


def numbers_of(packed: Tensor) -> Tensor:
    """Unpacks numbers to int8: a byte holds its low nibble first, in two's complement."""
    if packed.dtype is not torch.uint8:
        return packed
    signed = packed.view(torch.int8)
    return torch.stack(((signed << 4) >> 4, signed >> 4), -1).flatten(-2)


def dequantized(packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight, dequantised in float32."""
    rows, groups = scales.shape
    if scales.numel() == 0:
        return packed.new_zeros((rows, numbers_a_row(packed)), dtype=dtype)
    numbers = numbers_of(packed).float().reshape(rows, groups, -1)
    return (numbers * scales.float().unsqueeze(-1)).flatten(1).to(dtype)


def quantized_linear(x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    return _formula.linear(x, dequantized(packed, scales, x.dtype), bias)


def quantized_linear_gradient(
    dy: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, need_dx: bool, need_dbias: bool
) -> tuple[Tensor, Tensor]:
    dx, dbias = dy.new_empty(0), dy.new_empty(0)
    if need_dx:
        dx = (dy @ dequantized(packed, scales, dy.dtype)).contiguous()
    if need_dbias and bias is not None:
        dbias = _formula.bias_gradient(dy, bias.dtype)
    return dx, dbias


class DequantizedLinear(torch.autograd.Function):
    """The formula as a node that saves no dequantised weight for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(packed, scales, bias)
        return quantized_linear(x, packed, scales, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        packed, scales, bias = ctx.saved_tensors
        need_dx, _, _, need_dbias = ctx.needs_input_grad
        (dy,) = gradients
        dx, dbias = quantized_linear_gradient(dy, packed, scales, bias, need_dx, need_dbias)
        return dx if need_dx else None, None, None, dbias if need_dbias else None


def _shape_of_y(given: Given) -> Size:
    return Size((*given["x"].shape[:-1], given["packed"].shape[0]))


def _empty_dx(given: Given) -> Tensor:
    dy: Tensor = given["dy"]
    return dy.new_empty((*dy.shape[:-1], numbers_a_row(given["packed"])))


def _parallel(op: Op, given: Given) -> Ways:
    """By rows, by columns, or by terms, whose groups have a scale each; one device adds the
    bias."""
    columns: Way = {"packed": 2, "scales": 2, "bias": 1, "y": 1}
    terms: Way = {"x": 1, "packed": 1, "scales": 1, "bias": ONCE, "y": SUMMED}
    return [*rows(op, given), columns, terms]


def _flops(pass_: str, given: Given) -> float:
    """Either pass has one product, because the weight has no gradient."""
    packed, operand = given["packed"], given["x" if pass_ == "forward" else "dy"]
    return 2.0 * rows_of(operand) * len(packed) * numbers_a_row(packed)


QUANTIZED_LINEAR = declare(
    "quantized_linear",
    function="functional.quantized_linear",
    kind=PRODUCT,
    parallel=_parallel,
    flops=_flops,
    unread=("bias",),
    arguments=(
        Rows("x"), Argument("packed"), Argument("scales"), Bias("bias", table="packed"),
    ),
    results=(Result("y", shape=_shape_of_y),),
    backward="(dy, packed, scales, bias, need_dx, need_dbias) -> dx, dbias",
    formula=quantized_linear,
    gradient=quantized_linear_gradient,
    memory={"dx": _empty_dx},
    text="x @ (packed * scales).T + bias",
)  # fmt: skip
