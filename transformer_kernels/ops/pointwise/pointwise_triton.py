# SPDX-License-Identifier: MIT
"""The pointwise ops' engine in Triton: one kernel per pass, with the activation as a parameter.

A program owns a block of columns of a section of rows, and processes it tile by tile. A bias's
gradient is a partial sum for each section, and sections are added in a fixed order. A packed pair
is read as two tensors with a larger row stride.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._declare import Kernels
from .._dtype import accumulate_dtype
from .._triton_rows import accumulate_type, as_rows, vector
from . import activation_triton

_TILE = 2048  # elements
_WIDEST = 512  # columns
_MOST_SECTIONS = 64  # sections of rows that are summed separately


@triton.jit
def _load(x, stride, bias, at, col, inside, HAS_BIAS: tl.constexpr, ACC: tl.constexpr,
          COLS_INSIDE):  # fmt: skip
    v = tl.load(x + at * stride + col, mask=inside, other=0.0).to(ACC)
    if HAS_BIAS:
        v += tl.load(bias + col, mask=COLS_INSIDE, other=0.0).to(ACC)
    return v


@triton.jit
def _forward(
    gate, gate_stride, up, up_stride, bias, up_bias, y, rows, cols, rows_each,
    ACTIVATION: tl.constexpr, HAS_UP: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    col = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    first = tl.program_id(1).to(tl.int64) * rows_each
    last = tl.minimum(first + rows_each, rows)
    for begin in range(first, last, ROWS):
        at = (begin + tl.arange(0, ROWS))[:, None]
        inside = (at < last) & (col < cols)
        a = _load(gate, gate_stride, bias, at, col, inside, HAS_BIAS, ACC, col < cols)
        value, _ = ACTIVATION(a)
        if HAS_UP:
            value *= _load(up, up_stride, up_bias, at, col, inside, HAS_UP_BIAS, ACC, col < cols)
        tl.store(y + at * cols + col, value, mask=inside)


@triton.jit
def _backward(
    dy, dy_stride, gate, gate_stride, up, up_stride, bias, up_bias, dgate, dup, gradient_stride, y,
    dbias, dup_bias, rows, cols, rows_each,
    ACTIVATION: tl.constexpr, HAS_UP: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr, NEED_DBIAS: tl.constexpr, NEED_Y: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    col = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    section = tl.program_id(1).to(tl.int64)
    first = section * rows_each
    last = tl.minimum(first + rows_each, rows)
    bias_sum = tl.zeros((1, BLOCK), ACC)
    up_bias_sum = tl.zeros((1, BLOCK), ACC)
    for begin in range(first, last, ROWS):
        at = (begin + tl.arange(0, ROWS))[:, None]
        inside = (at < last) & (col < cols)
        g = tl.load(dy + at * dy_stride + col, mask=inside, other=0.0).to(ACC)
        a = _load(gate, gate_stride, bias, at, col, inside, HAS_BIAS, ACC, col < cols)
        value, slope = ACTIVATION(a)
        if HAS_UP:
            b = _load(up, up_stride, up_bias, at, col, inside, HAS_UP_BIAS, ACC, col < cols)
            db = g * value
            tl.store(dup + at * gradient_stride + col, db, mask=inside)
            if NEED_DBIAS and HAS_UP_BIAS:
                up_bias_sum += tl.sum(tl.where(inside, db, 0.0), 0)[None, :]
            g *= b
            value *= b
        da = g * slope
        tl.store(dgate + at * gradient_stride + col, da, mask=inside)
        if NEED_DBIAS and HAS_BIAS:
            bias_sum += tl.sum(tl.where(inside, da, 0.0), 0)[None, :]
        if NEED_Y:
            tl.store(y + at * cols + col, value, mask=inside)
    if NEED_DBIAS and HAS_BIAS:
        tl.store(dbias + section * cols + col, bias_sum, mask=col < cols)
    if NEED_DBIAS and HAS_UP_BIAS:
        tl.store(dup_bias + section * cols + col, up_bias_sum, mask=col < cols)


# ---- launches -----------------------------------------------------------------------------------


def _tile(cols: int) -> tuple[int, int]:
    """(rows, columns)."""
    block = min(max(triton.next_power_of_2(cols), 16), _WIDEST)
    return _TILE // block, block


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def _halves_of(bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if bias is None else _halves(bias)


def _run_forward(
    activation: Any, gated: bool, gate: Tensor, up: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None,
) -> Tensor:  # fmt: skip
    acc = accumulate_type(gate)
    a, a_stride = as_rows(gate)
    b, b_stride = (a, a_stride) if up is None else as_rows(up)
    if gated and up is None:
        a, b = _halves(a)
        bias, up_bias = _halves_of(bias)
    rows, cols = a.shape
    y = gate.new_empty((*gate.shape[:-1], cols))
    if y.numel():
        height, block = _tile(cols)
        with torch.cuda.device_of(gate):
            _forward[(triton.cdiv(cols, block), triton.cdiv(rows, height))](
                a, a_stride, b, b_stride, vector(bias, a), vector(up_bias, a), y, rows, cols,
                height,
                ACTIVATION=activation, HAS_UP=gated, HAS_BIAS=bias is not None,
                HAS_UP_BIAS=up_bias is not None, ACC=acc, ROWS=height, BLOCK=block,
            )  # fmt: skip
    return y


def _sum(partials: Tensor, bias: Tensor | None, need: bool) -> Tensor:
    if bias is None or not need:
        return partials.new_empty(0)
    return partials.sum(0).to(bias.dtype)


def _run_backward(
    activation: Any, gated: bool, dy: Tensor, gate: Tensor, up: Tensor | None,
    bias: Tensor | None, up_bias: Tensor | None, need_dbias: bool, need_y: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(dgate, dup, dbias, dup_bias, y)."""
    packed = gated and up is None
    acc = accumulate_type(gate)
    (a, a_stride), (g, g_stride) = as_rows(gate), as_rows(dy)
    b, b_stride = (a, a_stride) if up is None else as_rows(up)
    dgate = torch.empty_like(gate, memory_format=torch.contiguous_format)
    dup = gate.new_empty(0) if up is None else torch.empty_like(dgate)
    da, gradient_stride = as_rows(dgate)
    db = dup
    whole_bias = bias
    if packed:
        a, b = _halves(a)
        da, db = _halves(da)
        bias, up_bias = _halves_of(bias)
    rows, cols = a.shape
    y = gate.new_empty((*gate.shape[:-1], cols) if need_y else (0,))
    height, block = _tile(cols)
    sections = triton.cdiv(rows, height)
    if need_dbias:
        sections = min(sections, _MOST_SECTIONS)
    each = triton.cdiv(rows, sections) if sections else 0
    partials = torch.zeros(2, sections, cols, dtype=accumulate_dtype(gate), device=gate.device)
    if gate.numel():
        with torch.cuda.device_of(gate):
            _backward[(triton.cdiv(cols, block), sections)](
                g, g_stride, a, a_stride, b, b_stride, vector(bias, a), vector(up_bias, a), da, db,
                gradient_stride, y, partials[0],
                partials[1], rows, cols, each, ACTIVATION=activation, HAS_UP=gated,
                HAS_BIAS=bias is not None, HAS_UP_BIAS=up_bias is not None,
                NEED_DBIAS=need_dbias, NEED_Y=need_y, ACC=acc, ROWS=height, BLOCK=block,
            )  # fmt: skip
    if packed:
        joined = partials.transpose(0, 1).flatten(1)
        return dgate, dup, _sum(joined, whole_bias, need_dbias), gate.new_empty(0), y
    dbias, dup_bias = (
        _sum(part, of, need_dbias) for part, of in zip(partials, (bias, up_bias), strict=True)
    )
    return dgate, dup, dbias, dup_bias, y


def _plain_forward(activation: Any, x: Tensor, bias: Tensor | None) -> Tensor:
    return _run_forward(activation, False, x, None, bias, None)


def _plain_backward(
    activation: Any, dy: Tensor, x: Tensor, bias: Tensor | None, need_dbias: bool, need_y: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx, _, dbias, _, y = _run_backward(
        activation, False, dy, x, None, bias, None, need_dbias, need_y
    )
    return dx, dbias, y


@cache
def plain_kernels(name: str) -> Kernels:
    activation = getattr(activation_triton, name)
    forward = partial(_plain_forward, activation)
    return Kernels(forward, partial(_plain_backward, activation), forward)


@cache
def gated_kernels(name: str) -> Kernels:
    activation = getattr(activation_triton, name)
    forward = partial(_run_forward, activation, True)
    return Kernels(forward, partial(_run_backward, activation, True), forward)
