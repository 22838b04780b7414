# SPDX-License-Identifier: MIT
"""Dropout in Triton; the same elements drop as in every other backend.

A program owns a block of columns of a section of rows. It draws the numbers of each counter that
its columns touch; a counter gives eight elements if rows begin with one, and otherwise one counter
is drawn for each element.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _philox
from .._declare import Kernels
from .._dtype import accumulate_dtype
from .._triton_rows import accumulate_type, as_rows, vector

_BLOCK = 512  # columns
_TILE_ROWS = 4
_MOST_SECTIONS = 64  # sections of rows that are summed separately
_DRAWN = 8  # numbers per counter


@triton.jit
def _numbers(counter, seed):
    """The words of each counter; a word holds two 16-bit numbers."""
    offset = tl.load(seed + 1)
    return tl.philox(
        tl.load(seed), (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32),
        (offset & 0xFFFFFFFF).to(tl.uint32), ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )  # fmt: skip


@triton.jit
def _numbers_of(row, first_col, cols, seed, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """The numbers (rows, BLOCK) of the elements from ``first_col`` on."""
    if ALIGNED:
        counter = (row * cols + first_col) // 8 + tl.arange(0, BLOCK // 8)[None, :]
        a, b, c, d = _numbers(counter, seed)
        words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
        return tl.interleave(words & 0xFFFF, words >> 16).to(tl.int32)
    element = row * cols + first_col + tl.arange(0, BLOCK)[None, :]
    a, b, c, d = _numbers(element // 8, seed)
    word = (element % 8) // 2
    words = tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))
    return tl.where(element % 2 == 0, words & 0xFFFF, words >> 16).to(tl.int32)


@triton.jit
def _kernel(
    x, x_stride, bias, residual, residual_stride, seed, y, sums, rows, cols, rows_each, below,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, DRAWS: tl.constexpr,
    SUMS: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    first_col = tl.program_id(1).to(tl.int64) * BLOCK
    col = (first_col + tl.arange(0, BLOCK))[None, :]
    section = tl.program_id(0).to(tl.int64)
    first = section * rows_each
    last = tl.minimum(first + rows_each, rows)
    total = tl.zeros((1, BLOCK), ACC)
    for begin in range(first, last, ROWS):
        at = (begin + tl.arange(0, ROWS).to(tl.int64))[:, None]
        inside = (at < last) & (col < cols)
        v = tl.load(x + at * x_stride + col, mask=inside, other=0.0).to(ACC)
        if HAS_BIAS:
            v += tl.load(bias + col, mask=col < cols, other=0.0).to(ACC)
        v *= tl.full((1, 1), SCALE, ACC)
        if DRAWS:
            v = tl.where(_numbers_of(at, first_col, cols, seed, ALIGNED, BLOCK) >= below, v, 0.0)
        elif below != 0:
            v = tl.zeros((ROWS, BLOCK), ACC)
        if SUMS:
            total += tl.sum(tl.where(inside, v, 0.0), 0)[None, :]
        if HAS_RESIDUAL:
            v += tl.load(residual + at * residual_stride + col, mask=inside, other=0.0).to(ACC)
        tl.store(y + at * cols + col, v, mask=inside)
    if SUMS:
        tl.store(sums + section * cols + col, total, mask=col < cols)


def _run(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, seed: Tensor | None, p: float,
    sum_columns: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns the result, and its sums over the rows."""
    acc = accumulate_type(x)
    matrix, x_stride = as_rows(x)
    rows, cols = matrix.shape
    added, added_stride = (matrix, 0) if residual is None else as_rows(residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    below = _philox.threshold(p)
    draws = 0 < below < _philox.VALUES
    sections = triton.cdiv(rows, _TILE_ROWS)
    if sum_columns:
        sections = min(sections, _MOST_SECTIONS)
    rows_each = triton.cdiv(triton.cdiv(rows, max(sections, 1)), _TILE_ROWS) * _TILE_ROWS
    sections = triton.cdiv(rows, rows_each) if rows else 0
    sums = None
    if sum_columns:
        sums = torch.empty(sections, cols, dtype=accumulate_dtype(x), device=x.device)
    if rows and cols:
        with torch.cuda.device_of(x):
            _kernel[(sections, triton.cdiv(cols, _BLOCK))](
                matrix, x_stride, vector(bias, matrix), added, added_stride,
                None if seed is None else seed.to(x.device), y, sums, rows, cols, rows_each, below,
                SCALE=_philox.scale(p), HAS_BIAS=bias is not None,
                HAS_RESIDUAL=residual is not None, DRAWS=draws, SUMS=sum_columns,
                ALIGNED=cols % _DRAWN == 0, ACC=acc, ROWS=_TILE_ROWS, BLOCK=_BLOCK,
            )  # fmt: skip
    return y, None if sums is None else sums.sum(0)


def _dropout(x: Tensor, seed: Tensor | None, p: float) -> Tensor:
    return _run(x, None, None, seed, p, False)[0]


def _bias_dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor, seed: Tensor | None, p: float
) -> Tensor:
    return _run(x, bias, residual, seed, p, False)[0]


def _bias_dropout_add_backward(
    dy: Tensor, bias: Tensor | None, seed: Tensor | None, p: float, need_dbias: bool
) -> tuple[Tensor, Any]:
    needed = need_dbias and bias is not None
    dx, sums = _run(dy, None, None, seed, p, needed)
    if bias is None or sums is None:
        return dx, dy.new_empty(0)
    return dx, sums.to(bias.dtype)


DROPOUT = Kernels(_dropout, _dropout, _dropout)
BIAS_DROPOUT_ADD = Kernels(_bias_dropout_add, _bias_dropout_add_backward, _bias_dropout_add)
