# SPDX-License-Identifier: MIT
"""linear and linear_act in Triton: one kernel of matrix products computes all three of a layer.

A program owns a tile of the result and loops over the terms. Matrices have a stride for each
direction, so weights of either order and transposes are read without a copy. Bias and activation
are applied to the tile in registers. No other program adds to what a program owns, so results
repeat bit for bit.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._declare import Kernels
from .._dtype import accumulate_dtype
from ..pointwise import activation_triton
from ..pointwise.pointwise_triton import plain_kernels
from ..pointwise.table import ACTIVATIONS
from . import _formula
from ._arguments import empty_like_weight


class Matrix(NamedTuple):
    """A tensor of two dimensions with its strides."""

    data: Tensor
    row: int
    col: int


class Tile(NamedTuple):
    rows: int
    cols: int
    terms: int
    warps: int
    stages: int


class Statics(NamedTuple):
    """The constants that a kernel is compiled for."""

    rows: Any  # rows of a tile
    cols: Any
    terms: Any
    part: Any  # terms that are summed together
    operand: Any  # dtype of the product's operands
    acc: Any


GROUP = tl.constexpr(8)  # rows of tiles that share operands in the L2 cache


# ---- products -----------------------------------------------------------------------------------


@triton.jit
def _addresses(x, row, col):
    return x.data + row.to(tl.int64) * x.row + col.to(tl.int64) * x.col


@triton.jit
def _place(rows, cols, s):
    """The first row and column of a program's tile. Tiles are ordered in columns of GROUP."""
    tall, wide = tl.cdiv(rows, s.rows), tl.cdiv(cols, s.cols)
    program = tl.program_id(0)
    top = program // (GROUP * wide) * GROUP
    height = tl.minimum(tall - top, GROUP)
    within = program % (GROUP * wide)
    return (top + within % height) * s.rows, (within // height) * s.cols


@triton.jit
def _sum_of_terms(a, b, row, col, rows, cols, terms, s):
    """Computes a tile of a @ b. Terms are summed in parts, so that the error grows with the number
    of parts."""
    term = tl.arange(0, s.terms)
    a_at, b_at = _addresses(a, row, term[None, :]), _addresses(b, term[:, None], col)
    a_step, b_step = tl.cast(s.terms, tl.int64) * a.col, tl.cast(s.terms, tl.int64) * b.row
    total = tl.zeros((s.rows, s.cols), s.acc)
    for begin in range(0, terms, s.part):
        part = tl.zeros((s.rows, s.cols), s.acc)
        for first in range(begin, tl.minimum(begin + s.part, terms), s.terms):
            left = term < terms - first
            a_tile = tl.load(a_at, mask=(row < rows) & left[None, :], other=0.0).to(s.operand)
            b_tile = tl.load(b_at, mask=left[:, None] & (col < cols), other=0.0).to(s.operand)
            # "ieee" keeps all bits of a float32 product.
            part = tl.dot(a_tile, b_tile, part, input_precision="ieee", out_dtype=s.acc)
            a_at += a_step
            b_at += b_step
        total += part
    return total


@triton.jit
def _product(a, b, bias, z, y, rows, cols, terms, ACTIVATION: tl.constexpr, s: tl.constexpr):
    """Computes y = ACTIVATION(a @ b + bias), and stores the activation's argument as z."""
    first_row, first_col = _place(rows, cols, s)
    row = (first_row + tl.arange(0, s.rows))[:, None]
    col = (first_col + tl.arange(0, s.cols))[None, :]
    inside = (row < rows) & (col < cols)
    value = _sum_of_terms(a, b, row, col, rows, cols, terms, s)
    if bias is not None:
        value += tl.load(bias + col, mask=col < cols, other=0.0).to(s.acc)
    rounded = value.to(y.data.dtype.element_ty)
    if z is not None:
        tl.store(_addresses(z, row, col), rounded, mask=inside)
    if ACTIVATION is not None:
        activated, _ = ACTIVATION(rounded.to(s.acc))
        rounded = activated.to(y.data.dtype.element_ty)
    tl.store(_addresses(y, row, col), rounded, mask=inside)


@triton.jit
def _sum_rows(x, partials, rows, cols, rows_each, ACC: tl.constexpr, ROWS: tl.constexpr,
              COLS: tl.constexpr):  # fmt: skip
    """Sums a block of columns over a section of the rows."""
    col = (tl.program_id(0) * COLS + tl.arange(0, COLS))[None, :]
    section = tl.program_id(1)
    first = section * rows_each
    last = tl.minimum(first + rows_each, rows)
    total = tl.zeros((1, COLS), ACC)
    for begin in range(first, last, ROWS):
        row = (begin + tl.arange(0, ROWS))[:, None]
        inside = (row < last) & (col < cols)
        total += tl.sum(tl.load(_addresses(x, row, col), mask=inside, other=0.0).to(ACC), 0)[None]
    tl.store(partials + tl.cast(section, tl.int64) * cols + col, total, mask=col < cols)


# ---- launches -----------------------------------------------------------------------------------

# Tiles by the bytes of a number, the largest first. float32 has no tensor cores: small tiles stay
# in registers.
TILES = {
    2: (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(64, 64, 64, 4, 4)),
    4: (Tile(128, 64, 16, 4, 2), Tile(64, 64, 16, 8, 2)),
    8: (Tile(64, 64, 16, 8, 2),),
}
_PARTS = {2: 1 << 30, 4: 256, 8: 256}  # tensor cores sum 16-bit terms in their own way
_SUMMED_ROWS, _SUMMED_COLS = 32, 64
_MOST_SECTIONS = 64  # sections of rows that are summed separately
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_OPERANDS = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.float32 if _INTERPRETED else tl.bfloat16,  # its matmul has no bfloat16
}


def _accumulate(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype is torch.float64 else tl.float32


def _matrix(x: Tensor) -> Matrix:
    x = x.resolve_neg()  # a kernel only sees the sign in memory
    return Matrix(x, *x.stride())


def _tile(x: Tensor, rows: int, cols: int) -> Tile:
    """The largest tile that fits in shared memory and leaves no multiprocessor idle."""
    *large, least = TILES[x.dtype.itemsize]
    if not x.is_cuda:
        return least
    device = torch.cuda.get_device_properties(x.device)
    for tile in large:
        memory = (tile.rows + tile.cols) * tile.terms * tile.stages * x.dtype.itemsize
        fits = memory <= device.shared_memory_per_multiprocessor
        if fits and _programs(tile, rows, cols) >= device.multi_processor_count:
            return tile
    return least


def _programs(tile: Tile, rows: int, cols: int) -> int:
    programs: int = triton.cdiv(rows, tile.rows) * triton.cdiv(cols, tile.cols)
    return programs


def _multiply(
    a: Tensor, b: Tensor, y: Tensor, bias: Tensor | None = None, z: Tensor | None = None,
    activation: Any = None,
) -> None:  # fmt: skip
    """Computes y = activation(a @ b + bias) of matrices, and the activation's argument in z."""
    (rows, terms), cols = a.shape, b.shape[1]
    if not y.numel():
        return
    tile = _tile(y, rows, cols)
    part = _PARTS[y.dtype.itemsize]
    statics = (tile.rows, tile.cols, tile.terms, part, _OPERANDS[y.dtype], _accumulate(y))
    with torch.cuda.device_of(y):
        _product[(_programs(tile, rows, cols),)](
            _matrix(a), _matrix(b), None if bias is None else bias.resolve_neg().contiguous(),
            None if z is None else _matrix(z), _matrix(y), rows, cols, terms,
            ACTIVATION=activation, s=Statics(*map(tl.constexpr, statics)), num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip


def _summed_rows(x: Tensor) -> Tensor:
    """The sum of each column; sections of the rows are added up in their order."""
    rows, cols = x.shape
    sections = min(triton.cdiv(rows, _SUMMED_ROWS), _MOST_SECTIONS)
    partials = torch.empty(sections, cols, dtype=accumulate_dtype(x), device=x.device)
    if x.numel():
        with torch.cuda.device_of(x):
            _sum_rows[(triton.cdiv(cols, _SUMMED_COLS), sections)](
                _matrix(x), partials, rows, cols, triton.cdiv(rows, sections), ACC=_accumulate(x),
                ROWS=_SUMMED_ROWS, COLS=_SUMMED_COLS,
            )  # fmt: skip
    return partials.sum(0)


# ---- passes -------------------------------------------------------------------------------------


def _empty_y(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = _empty_y(x, weight)
    _multiply(_formula.as_rows(x), weight.t(), _formula.as_rows(y), bias)
    return y


def _linear_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, need_dx: bool, need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx, dweight, dbias = (x.new_empty(0) for _ in range(3))
    dy_rows = _formula.as_rows(dy)
    if need_dx:
        dx = x.new_empty(x.shape)
        _multiply(dy_rows, weight, _formula.as_rows(dx))
    if need_dweight:
        dweight = empty_like_weight(weight)
        _multiply(dy_rows.t(), _formula.as_rows(x), dweight)
    if need_dbias and bias is not None:
        dbias = _summed_rows(dy_rows).to(bias.dtype)
    return dx, dweight, dbias


def _run_linear_act(
    keep: bool, x: Tensor, weight: Tensor, bias: Tensor | None, activation: int
) -> tuple[Tensor, Tensor]:
    """Returns y, and z if it is saved."""
    y = _empty_y(x, weight)
    z = torch.empty_like(y) if keep else None
    _multiply(
        _formula.as_rows(x), weight.t(), _formula.as_rows(y), bias,
        None if z is None else _formula.as_rows(z),
        getattr(activation_triton, ACTIVATIONS[activation].name),
    )  # fmt: skip
    return y, y if z is None else z


def _linear_act_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _run_linear_act(True, *arguments)


def _linear_act_inference(*arguments: Any) -> Tensor:
    return _run_linear_act(False, *arguments)[0]


def _linear_act_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor, activation: int,
    *needs: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    slope_times = plain_kernels(ACTIVATIONS[activation].name).backward
    dz, _, _ = slope_times(dy, z, None, False, False)
    return _linear_backward(dz, x, weight, bias, *needs)


LINEAR = Kernels(_linear, _linear_backward, _linear)
LINEAR_ACT = Kernels(_linear_act_forward, _linear_act_backward, _linear_act_inference)
