# SPDX-License-Identifier: MIT
"""softmax and log_softmax in Triton, with the signatures of the raw ops.

A program owns one row. A row of up to WHOLE_ROW elements stays in registers. A wider one is read
twice: for its maximum and sum, which are combined chunk by chunk, and again to be written.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_rows import accumulate_type, as_rows, shape_of

_MASK_KINDS = {"none": 0, "bool": 1, "additive": 2}


@triton.jit
def _scores(
    x_row, mask_row, mask_col, cols, limit, start,
    SCALE: tl.constexpr, MASK: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The masked scores of one chunk; -inf past the row's end and from column `limit` on."""
    col = start + tl.arange(0, BLOCK)
    inside = col < cols
    z = tl.load(x_row + col, mask=inside, other=-float("inf")).to(ACC) * tl.full((1,), SCALE, ACC)
    if MASK == 1:
        takes_part = tl.load(mask_row + col * mask_col, mask=inside, other=0)
        z = tl.where(takes_part != 0, z, -float("inf"))
    if MASK == 2:
        z += tl.load(mask_row + col * mask_col, mask=inside, other=0.0).to(ACC)
    return tl.where(col < limit, z, -float("inf"))


@triton.jit
def _finite(maximum):
    """A reference for the exponent with which exp(-inf - reference) is 0 and not NaN."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def _result(z, maximum, total, LOG: tl.constexpr, MASKED: tl.constexpr):
    """The result of a chunk. Only a row that a mask hides wholly may be 0 or -inf all over; others
    are NaN."""
    dead = MASKED & (total == 0.0)
    if LOG:
        y = z - maximum - tl.log(total)
        return tl.where(dead, -float("inf"), y)
    y = tl.exp(z - maximum) / total
    return tl.where(dead, 0.0, y)


@triton.jit
def _forward(
    x, x_stride, y, y_stride, mask, size1, size2, stride0, stride1, stride2, mask_col,
    cols, queries,
    SCALE: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, LOG: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * x_stride
    y_row = y + row * y_stride
    outer = row // size2
    mask_row = mask + (outer // size1) * stride0 + (outer % size1) * stride1
    mask_row += (row % size2) * stride2
    limit = cols
    if CAUSAL:
        limit = row % queries + 1 + cols - queries
    MASKED: tl.constexpr = CAUSAL or MASK != 0
    if WHOLE:
        z = _scores(x_row, mask_row, mask_col, cols, limit, 0, SCALE, MASK, ACC, BLOCK)
        maximum = tl.max(z, 0)
        total = tl.sum(tl.exp(z - _finite(maximum)), 0)
        col = tl.arange(0, BLOCK)
        tl.store(y_row + col, _result(z, maximum, total, LOG, MASKED), mask=col < cols)
    else:
        maximum = tl.max(tl.full((2,), -float("inf"), ACC), 0)
        total = tl.sum(tl.zeros((2,), ACC), 0)
        for start in range(0, cols, BLOCK):
            z = _scores(x_row, mask_row, mask_col, cols, limit, start, SCALE, MASK, ACC, BLOCK)
            reached = tl.maximum(maximum, tl.max(z, 0))
            total *= tl.exp(_finite(maximum) - _finite(reached)) * (maximum != -float("inf"))
            total += tl.sum(tl.exp(z - _finite(reached)), 0)
            maximum = reached
        for start in range(0, cols, BLOCK):
            z = _scores(x_row, mask_row, mask_col, cols, limit, start, SCALE, MASK, ACC, BLOCK)
            col = start + tl.arange(0, BLOCK)
            tl.store(y_row + col, _result(z, maximum, total, LOG, MASKED), mask=col < cols)


@triton.jit
def _load_pair(dy_row, y_row, cols, start, LOG: tl.constexpr, ACC: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """One chunk of dy and y; values past the row's end add nothing."""
    col = start + tl.arange(0, BLOCK)
    inside = col < cols
    dy = tl.load(dy_row + col, mask=inside, other=0.0).to(ACC)
    y = tl.load(y_row + col, mask=inside, other=-float("inf") if LOG else 0.0).to(ACC)
    return dy, y


@triton.jit
def _gradient(dy, y, total, scale, MASKED: tl.constexpr, LOG: tl.constexpr):
    if LOG:
        dz = dy - tl.exp(y) * total
        if MASKED:
            dz = tl.where(y == -float("inf"), 0.0, dz)
    else:
        dz = y * (dy - total)
    return dz * scale


@triton.jit
def _backward(
    dy, dy_stride, y, y_stride, dx, dx_stride, cols,
    SCALE: tl.constexpr, MASKED: tl.constexpr, LOG: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy + row * dy_stride
    y_row = y + row * y_stride
    dx_row = dx + row * dx_stride
    scale = tl.full((1,), SCALE, ACC)
    if WHOLE:
        g, p = _load_pair(dy_row, y_row, cols, 0, LOG, ACC, BLOCK)
        total = tl.sum(g if LOG else g * p, 0)
        col = tl.arange(0, BLOCK)
        tl.store(dx_row + col, _gradient(g, p, total, scale, MASKED, LOG), mask=col < cols)
    else:
        total = tl.sum(tl.zeros((2,), ACC), 0)
        for start in range(0, cols, BLOCK):
            g, p = _load_pair(dy_row, y_row, cols, start, LOG, ACC, BLOCK)
            total += tl.sum(g if LOG else g * p, 0)
        for start in range(0, cols, BLOCK):
            g, p = _load_pair(dy_row, y_row, cols, start, LOG, ACC, BLOCK)
            col = start + tl.arange(0, BLOCK)
            tl.store(dx_row + col, _gradient(g, p, total, scale, MASKED, LOG), mask=col < cols)


def _mask_rows(mask: Tensor, shape: torch.Size) -> tuple[Tensor, list[int], list[int], int]:
    """The mask over x's rows, as up to three pairs (size, stride), outermost first."""
    mask = mask.expand(shape)
    dims: list[tuple[int, int]] = []
    for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True):
        if dims and dims[-1][1] == stride * size:
            dims[-1] = (dims[-1][0] * size, stride)
        elif size != 1:
            dims.append((size, stride))
    if len(dims) > 3 or mask.stride(-1) not in (0, 1):
        return _mask_rows(mask.contiguous(), shape)
    dims = [(1, 0)] * (3 - len(dims)) + dims
    return mask, [size for size, _ in dims], [stride for _, stride in dims], mask.stride(-1)


def softmax_forward(
    x: Tensor, mask: Tensor | None, scale: float, causal: bool, log: bool
) -> Tensor:
    acc = accumulate_type(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return y
    kind, sizes, strides, mask_col = 0, [1, 1, 1], [0, 0, 0], 0
    if mask is not None:
        kind = _MASK_KINDS["bool" if mask.dtype is torch.bool else "additive"]
        mask, sizes, strides, mask_col = _mask_rows(mask, x.shape)
        if kind == _MASK_KINDS["bool"]:
            mask = mask.view(torch.uint8)
    rows, stride = as_rows(x)
    block, whole, warps = shape_of(rows.shape[1])
    with torch.cuda.device_of(x):
        _forward[(rows.shape[0],)](
            rows, stride, y, x.shape[-1], x if mask is None else mask, sizes[1], sizes[2],
            *strides, mask_col, x.shape[-1], x.shape[-2] if causal else 1,
            SCALE=scale, MASK=kind, CAUSAL=causal, LOG=log, ACC=acc, BLOCK=block, WHOLE=whole,
            num_warps=warps,
        )  # fmt: skip
    return y


def softmax_backward(dy: Tensor, y: Tensor, scale: float, masked: bool, log: bool) -> Tensor:
    acc = accumulate_type(y)
    dx = torch.empty_like(y, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return dx
    dy_rows, dy_stride = as_rows(dy)
    y_rows, y_stride = as_rows(y)
    block, whole, warps = shape_of(y.shape[-1])
    with torch.cuda.device_of(y):
        _backward[(y_rows.shape[0],)](
            dy_rows, dy_stride, y_rows, y_stride, dx, y.shape[-1], y.shape[-1],
            SCALE=scale, MASKED=masked, LOG=log, ACC=acc, BLOCK=block, WHOLE=whole,
            num_warps=warps,
        )  # fmt: skip
    return dx
