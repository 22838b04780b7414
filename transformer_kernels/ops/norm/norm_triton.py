# SPDX-License-Identifier: MIT
"""The norms' engine in Triton; layer_norm and rms_norm differ in CENTER.

Forward, a program owns one row. Up to WHOLE_ROW elements stay in registers; a wider row is read
again in every pass. Backward, rows of up to WHOLE_BACKWARD elements are shared by a fixed number of
programs, which keep their parts of dweight and dbias in registers; wider rows take one kernel over
rows and one over columns. Parameter gradients are partial sums added in a fixed order, so results
repeat bit for bit.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._declare import Kernels
from .._dtype import accumulate_dtype
from .._triton_rows import accumulate_type, as_rows, shape_of, vector

WHOLE_BACKWARD = 8192
_COLUMN_BLOCK = 128
# Rows whose squares overflow are multiplied by it first, in float32 and in float64.
_FAR = (2.0**-80, 2.0**-600)
_ROWS_AT_ONCE = 16


@triton.jit
def _load(row, start, cols, ACC: tl.constexpr, BLOCK: tl.constexpr):
    col = start + tl.arange(0, BLOCK)
    return tl.load(row + col, mask=col < cols, other=0.0).to(ACC)


@triton.jit
def _load_scale(weight, start, cols, HAS_WEIGHT: tl.constexpr, ZERO_CENTERED: tl.constexpr,
                ACC: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    if HAS_WEIGHT:
        w = _load(weight, start, cols, ACC, BLOCK)
        return w + 1.0 if ZERO_CENTERED else w
    return tl.full((BLOCK,), 1.0, ACC)


@triton.jit
def _load_sum(x_row, residual_row, start, cols, HAS_RESIDUAL: tl.constexpr, ACC: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """x, or x + residual rounded to x's dtype: the values that are normalised."""
    s = _load(x_row, start, cols, ACC, BLOCK)
    if HAS_RESIDUAL:
        s += _load(residual_row, start, cols, ACC, BLOCK)
        s = s.to(x_row.dtype.element_ty).to(ACC)
    return s


@triton.jit
def _centered_square(s, mean, start, cols, BLOCK: tl.constexpr):
    """Sum of squares about the mean, over the columns inside the row."""
    d = tl.where(start + tl.arange(0, BLOCK) < cols, s - mean, 0.0)
    return tl.sum(d * d, 0)


@triton.jit
def _moments(x_row, residual_row, cols, SCALE: tl.constexpr, CENTER: tl.constexpr,
             HAS_RESIDUAL: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The mean of a row times SCALE, and the sum of squares about it."""
    scale = tl.full((1,), SCALE, ACC)
    mean = tl.sum(tl.zeros((2,), ACC), 0)
    squares = tl.sum(tl.zeros((2,), ACC), 0)
    if CENTER:
        for start in range(0, cols, BLOCK):
            s = _load_sum(x_row, residual_row, start, cols, HAS_RESIDUAL, ACC, BLOCK)
            mean += tl.sum(s * scale, 0)
        mean /= cols
    for start in range(0, cols, BLOCK):
        s = _load_sum(x_row, residual_row, start, cols, HAS_RESIDUAL, ACC, BLOCK)
        squares += _centered_square(s * scale, mean, start, cols, BLOCK)
    return mean, squares


@triton.jit
def _store_row(y_row, sum_row, weight, bias, s, mean, rstd, start, cols,
               HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
               ZERO_CENTERED: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    col = start + tl.arange(0, BLOCK)
    y = (s - mean) * rstd
    y *= _load_scale(weight, start, cols, HAS_WEIGHT, ZERO_CENTERED, ACC, BLOCK)
    if HAS_BIAS:
        y += _load(bias, start, cols, ACC, BLOCK)
    tl.store(y_row + col, y, mask=col < cols)
    if HAS_RESIDUAL:
        tl.store(sum_row + col, s, mask=col < cols)


@triton.jit
def _forward(
    x, x_stride, residual, residual_stride, weight, bias, y, s_out, mean_out, rstd_out, cols,
    EPS: tl.constexpr, FAR: tl.constexpr, CENTER: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, ZERO_CENTERED: tl.constexpr,
    KEEP: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * x_stride
    residual_row = residual + row * residual_stride
    y_row = y + row * cols
    sum_row = s_out + row * cols
    mean = tl.sum(tl.zeros((2,), ACC), 0)
    if WHOLE:
        s = _load_sum(x_row, residual_row, 0, cols, HAS_RESIDUAL, ACC, BLOCK)
        if CENTER:
            mean = tl.sum(s, 0) / cols
        squares = _centered_square(s, mean, 0, cols, BLOCK)
    else:
        mean, squares = _moments(
            x_row, residual_row, cols, 1.0, CENTER, HAS_RESIDUAL, ACC, BLOCK
        )  # fmt: skip
    rstd = 1.0 / tl.sqrt(tl.sum(squares / cols + tl.full((1,), EPS, ACC), 0))
    if tl.where(squares < float("inf"), 0, 1) == 1:  # squares overflow: again, of smaller numbers
        mean, squares = _moments(
            x_row, residual_row, cols, FAR, CENTER, HAS_RESIDUAL, ACC, BLOCK
        )  # fmt: skip
        far = tl.sum(tl.full((1,), FAR, ACC), 0)
        mean /= far
        rstd = far / tl.sqrt(squares / cols)
    if KEEP:
        tl.store(rstd_out + row, rstd)
        if CENTER:
            tl.store(mean_out + row, mean)
    if WHOLE:
        _store_row(y_row, sum_row, weight, bias, s, mean, rstd, 0, cols,
                   HAS_RESIDUAL, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED, ACC, BLOCK)  # fmt: skip
    else:
        for start in range(0, cols, BLOCK):
            s = _load_sum(x_row, residual_row, start, cols, HAS_RESIDUAL, ACC, BLOCK)
            _store_row(y_row, sum_row, weight, bias, s, mean, rstd, start, cols,
                       HAS_RESIDUAL, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED, ACC, BLOCK)  # fmt: skip


@triton.jit
def _load_mean(mean, row, CENTER: tl.constexpr, ACC: tl.constexpr):
    if CENTER:
        return tl.load(mean + row)
    return tl.sum(tl.zeros((2,), ACC), 0)


@triton.jit
def _gradient(g, xhat, mean_g, mean_gx, rstd, CENTER: tl.constexpr):
    d = g - xhat * mean_gx
    if CENTER:
        d -= mean_g
    return d * rstd


@triton.jit
def _store_gradient(dx_row, dsum_row, d, start, cols, HAS_DSUM: tl.constexpr, ACC: tl.constexpr,
                    BLOCK: tl.constexpr):  # fmt: skip
    col = start + tl.arange(0, BLOCK)
    if HAS_DSUM:
        d += _load(dsum_row, start, cols, ACC, BLOCK)
    tl.store(dx_row + col, d, mask=col < cols)


@triton.jit
def _backward_whole(
    dy, dy_stride, dsum, dsum_stride, x, x_stride, mean, rstd, weight, dx, dweight, dbias,
    rows, cols, programs,
    CENTER: tl.constexpr, HAS_DSUM: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    ZERO_CENTERED: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes the gradients; a program owns every `programs`-th row, and one row of partial
    sums."""
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    scale = _load_scale(weight, 0, cols, HAS_WEIGHT, ZERO_CENTERED, ACC, BLOCK)
    weight_sum = tl.zeros((BLOCK,), ACC)
    bias_sum = tl.zeros((BLOCK,), ACC)
    for row in range(program, rows, programs):
        g = _load(dy + row * dy_stride, 0, cols, ACC, BLOCK)
        row_rstd = tl.load(rstd + row)
        s = _load(x + row * x_stride, 0, cols, ACC, BLOCK)
        xhat = tl.where(inside, (s - _load_mean(mean, row, CENTER, ACC)) * row_rstd, 0.0)
        weight_sum += g * xhat
        bias_sum += g
        g *= scale
        mean_g = tl.sum(g, 0) / cols
        mean_gx = tl.sum(g * xhat, 0) / cols
        d = _gradient(g, xhat, mean_g, mean_gx, row_rstd, CENTER)
        _store_gradient(dx + row * cols, dsum + row * dsum_stride, d, 0, cols, HAS_DSUM, ACC, BLOCK)
    if NEED_DWEIGHT:
        tl.store(dweight + program * cols + col, weight_sum, mask=inside)
    if NEED_DBIAS:
        tl.store(dbias + program * cols + col, bias_sum, mask=inside)


@triton.jit
def _backward_rows(
    dy, dy_stride, dsum, dsum_stride, x, x_stride, mean, rstd, weight, dx, cols,
    CENTER: tl.constexpr, HAS_DSUM: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    ZERO_CENTERED: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes dx of wide rows; a program owns one."""
    row = tl.program_id(0).to(tl.int64)
    row_mean = _load_mean(mean, row, CENTER, ACC)
    row_rstd = tl.load(rstd + row)
    mean_g = tl.sum(tl.zeros((2,), ACC), 0)
    mean_gx = tl.sum(tl.zeros((2,), ACC), 0)
    for start in range(0, cols, BLOCK):
        g = _load(dy + row * dy_stride, start, cols, ACC, BLOCK)
        g *= _load_scale(weight, start, cols, HAS_WEIGHT, ZERO_CENTERED, ACC, BLOCK)
        s = _load(x + row * x_stride, start, cols, ACC, BLOCK)
        mean_g += tl.sum(g, 0)
        mean_gx += tl.sum(g * (s - row_mean) * row_rstd, 0)
    mean_g /= cols
    mean_gx /= cols
    for start in range(0, cols, BLOCK):
        g = _load(dy + row * dy_stride, start, cols, ACC, BLOCK)
        g *= _load_scale(weight, start, cols, HAS_WEIGHT, ZERO_CENTERED, ACC, BLOCK)
        s = _load(x + row * x_stride, start, cols, ACC, BLOCK)
        d = _gradient(g, (s - row_mean) * row_rstd, mean_g, mean_gx, row_rstd, CENTER)
        _store_gradient(dx + row * cols, dsum + row * dsum_stride, d, start, cols,
                        HAS_DSUM, ACC, BLOCK)  # fmt: skip


@triton.jit
def _backward_columns(
    dy, dy_stride, x, x_stride, mean, rstd, dweight, dbias, rows, cols, rows_a_program,
    CENTER: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums parameter gradients of BLOCK columns over one section of the rows."""
    col = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    section = tl.program_id(1).to(tl.int64)
    weight_sum = tl.zeros((BLOCK,), ACC)
    bias_sum = tl.zeros((BLOCK,), ACC)
    for first in range(0, rows_a_program, ROWS):
        row = section * rows_a_program + first + tl.arange(0, ROWS)
        valid = row < tl.minimum(rows, (section + 1) * rows_a_program)
        inside = valid[:, None] & (col < cols)[None, :]
        g = tl.load(dy + row[:, None] * dy_stride + col[None, :], mask=inside, other=0.0).to(ACC)
        s = tl.load(x + row[:, None] * x_stride + col[None, :], mask=inside, other=0.0).to(ACC)
        if CENTER:
            s -= tl.load(mean + row, mask=valid, other=0.0)[:, None]
        xhat = s * tl.load(rstd + row, mask=valid, other=0.0)[:, None]
        weight_sum += tl.sum(g * xhat, 0)
        bias_sum += tl.sum(g, 0)
    if NEED_DWEIGHT:
        tl.store(dweight + section * cols + col, weight_sum, mask=col < cols)
    if NEED_DBIAS:
        tl.store(dbias + section * cols + col, bias_sum, mask=col < cols)


# ---- launches -----------------------------------------------------------------------------------


def _statistics_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape[:-1], dtype=accumulate_dtype(x), device=x.device)


def _run_forward(
    keep: bool, center: bool, x: Tensor, residual: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, eps: float, zero_centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns (y, sum, mean, rstd); those that are not asked for are unwritten."""
    acc = accumulate_type(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    s = y if residual is None else torch.empty_like(y)
    mean, rstd = _statistics_like(x), _statistics_like(x)
    if x.numel() == 0:
        return y, s, mean.zero_(), rstd.fill_(torch.nan)
    rows, stride = as_rows(x)
    residual_rows, residual_stride = (rows, 0) if residual is None else as_rows(residual)
    block, whole, warps = shape_of(rows.shape[1])
    with torch.cuda.device_of(x):
        _forward[(rows.shape[0],)](
            rows, stride, residual_rows, residual_stride, vector(weight, x), vector(bias, x), y,
            s, mean, rstd, rows.shape[1],
            EPS=eps, FAR=_FAR[x.dtype is torch.float64], CENTER=center,
            HAS_RESIDUAL=residual is not None, HAS_WEIGHT=weight is not None,
            HAS_BIAS=bias is not None, ZERO_CENTERED=zero_centered, KEEP=keep, ACC=acc, BLOCK=block,
            WHOLE=whole, num_warps=warps,
        )  # fmt: skip
    return y, s, mean, rstd


def _programs(x: Tensor) -> int:
    """The number of programs that share the rows of a backward pass: a few per multiprocessor."""
    if not x.is_cuda:
        return 3
    return 4 * torch.cuda.get_device_properties(x.device).multi_processor_count


def _gradient_of(parameter: Tensor | None, partials: Tensor, needed: bool, x: Tensor) -> Tensor:
    if parameter is None or not needed:
        return x.new_empty(0)
    return partials.sum(0).to(parameter.dtype)


def _run_backward(
    center: bool, dy: Tensor, dsum: Tensor | None, x: Tensor, mean: Tensor | None,
    rstd: Tensor, weight: Tensor | None, bias: Tensor | None, zero_centered: bool,
    need_dweight: bool, need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    acc = accumulate_type(x)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    cols = x.shape[-1]
    rows = x.numel() // cols if cols else 0
    programs = min(_programs(x), rows)
    partials = torch.empty(2, programs, cols, dtype=rstd.dtype, device=x.device)
    if x.numel():
        x_rows, x_stride = as_rows(x)
        dy_rows, dy_stride = as_rows(dy)
        dsum_rows, dsum_stride = (dx, 0) if dsum is None else as_rows(dsum)
        mean = rstd if mean is None else mean
        inputs = (
            dy_rows, dy_stride, dsum_rows, dsum_stride, x_rows, x_stride, mean, rstd,
            vector(weight, x),
        )  # fmt: skip
        options: dict[str, Any] = {"CENTER": center, "ACC": acc}
        affine = {
            "HAS_DSUM": dsum is not None,
            "HAS_WEIGHT": weight is not None,
            "ZERO_CENTERED": zero_centered,
        }
        needs = {"NEED_DWEIGHT": need_dweight, "NEED_DBIAS": need_dbias}
        block, whole, warps = shape_of(cols, WHOLE_BACKWARD)
        with torch.cuda.device_of(x):
            if whole:
                _backward_whole[(programs,)](
                    *inputs, dx, partials[0], partials[1], rows, cols, programs,
                    **options, **affine, **needs, BLOCK=block, num_warps=warps,
                )  # fmt: skip
            else:
                _backward_rows[(rows,)](
                    *inputs, dx, cols, **options, **affine, BLOCK=block, num_warps=warps
                )
                if need_dweight or need_dbias:
                    sections = min(programs, triton.cdiv(rows, _ROWS_AT_ONCE))
                    partials = partials[:, :sections]
                    _backward_columns[(triton.cdiv(cols, _COLUMN_BLOCK), sections)](
                        dy_rows, dy_stride, x_rows, x_stride, mean, rstd, partials[0],
                        partials[1], rows, cols, triton.cdiv(rows, sections),
                        **options, **needs, ROWS=_ROWS_AT_ONCE, BLOCK=_COLUMN_BLOCK,
                    )  # fmt: skip
    dweight = _gradient_of(weight, partials[0], need_dweight, x)
    dbias = _gradient_of(bias, partials[1], need_dbias, x)
    return dx, dweight, dbias


@cache
def norm_kernels(center: bool) -> tuple[Kernels, Kernels]:
    """The kernels of the norm alone, and of a sum."""

    def forward(x: Tensor, *options: Any) -> tuple[Tensor, ...]:
        y, _, mean, rstd = _run_forward(True, center, x, None, *options)
        return (y, mean, rstd) if center else (y, rstd)

    def inference(x: Tensor, *options: Any) -> Tensor:
        return _run_forward(False, center, x, None, *options)[0]

    def add_forward(*arguments: Any) -> tuple[Tensor, ...]:
        y, s, mean, rstd = _run_forward(True, center, *arguments)
        return (y, s, mean, rstd) if center else (y, s, rstd)

    def add_inference(*arguments: Any) -> tuple[Tensor, ...]:
        return _run_forward(False, center, *arguments)[:2]

    def backward(dy: Tensor, dsum: Tensor | None, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        rest = rest if center else (None, *rest)
        return _run_backward(center, dy, dsum, x, *rest)

    return (
        Kernels(forward, backward, inference),
        Kernels(add_forward, backward, add_inference),
    )
