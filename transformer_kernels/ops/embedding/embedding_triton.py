# SPDX-License-Identifier: MIT
"""The embeddings in Triton, with the signatures of the raw ops.

Forward, a program owns a block of columns of one token. Backward, PyTorch sorts tokens by index,
and a program owns a block of columns of one row of the gradient, whose tokens it adds in order. An
index out of range gives NaN, and adds nothing to gradients.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_rows import accumulate_type, as_rows, shape_of
from ._formula import positions_of


@triton.jit
def _row(weight, stride, indices, period, rows, token, col, inside, ACC: tl.constexpr):
    index = tl.load(indices + token % period).to(tl.int64) + col * 0
    known = inside & (index >= 0) & (index < rows)
    return tl.load(weight + index * stride + col, mask=known, other=float("nan")).to(ACC)


@triton.jit
def _forward(
    y, cols, weight0, stride0, indices0, period0, rows0, weight1, stride1, indices1, period1, rows1,
    weight2, stride2, indices2, period2, rows2,
    TABLES: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    total = _row(weight0, stride0, indices0, period0, rows0, token, col, inside, ACC)
    if TABLES > 1:
        total += _row(weight1, stride1, indices1, period1, rows1, token, col, inside, ACC)
    if TABLES > 2:
        total += _row(weight2, stride2, indices2, period2, rows2, token, col, inside, ACC)
    tl.store(y + token * cols + col, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy, stride, tokens, ends, dweight, cols, scale_by_count,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    begin = tl.load(ends + row)
    end = tl.load(ends + row + 1)
    total = tl.zeros((BLOCK,), ACC)
    for i in range(begin, end):
        token = tl.load(tokens + i)
        total += tl.load(dy + token * stride + col, mask=inside, other=0.0).to(ACC)
    if scale_by_count:
        total /= tl.maximum(end - begin, 1).to(ACC)
    tl.store(dweight + row * cols + col, total.to(dweight.dtype.element_ty), mask=inside)


def _sum_of_rows(tokens: Tensor, tables: list[tuple[Tensor, Tensor]]) -> Tensor:
    weight = tables[0][0]
    acc = accumulate_type(weight)
    cols = weight.shape[1]
    y = weight.new_empty(*tokens.shape, cols)
    if y.numel() == 0:
        return y
    block, _, warps = shape_of(cols, 2048)
    operands: list[Tensor | int] = []
    for table, indices in [*tables, *[tables[0]] * (3 - len(tables))]:
        rows, stride = as_rows(table)
        operands += [rows, stride, indices.contiguous(), max(indices.numel(), 1), table.shape[0]]
    with torch.cuda.device_of(weight):
        _forward[(tokens.numel(), triton.cdiv(cols, block))](
            y, cols, *operands, TABLES=len(tables), ACC=acc, BLOCK=block, num_warps=warps
        )
    return y


def _gradient(
    dy: Tensor, indices: Tensor, rows: int, padding_idx: int = -1, scale: bool = False
) -> Tensor:
    acc = accumulate_type(dy)
    cols = dy.shape[-1]
    dweight = dy.new_empty(rows, cols)
    if dweight.numel() == 0:
        return dweight
    flat = indices.reshape(-1)
    left_out = (flat < 0) | (flat >= rows) | (flat == padding_idx)
    keys, tokens = torch.where(left_out, rows, flat.long()).sort(stable=True)
    ends = torch.searchsorted(keys, torch.arange(rows + 1, device=dy.device))
    dy_rows, stride = as_rows(dy)
    block, _, warps = shape_of(cols, 2048)
    with torch.cuda.device_of(dy):
        _backward[(rows, triton.cdiv(cols, block))](
            dy_rows, stride, tokens, ends, dweight, cols, scale, ACC=acc, BLOCK=block,
            num_warps=warps,
        )  # fmt: skip
    return dweight


def _embedding(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return _sum_of_rows(indices, [(weight, indices)])


def _embedding_backward(
    dy: Tensor, indices: Tensor, rows: int, padding_idx: int, scale: bool
) -> Tensor:
    return _gradient(dy, indices, rows, padding_idx, scale)


def _embedding_add(
    weight: Tensor, tokens: Tensor, position_weight: Tensor, positions: Tensor | None,
    type_weight: Tensor | None, types: Tensor | None, first_position: int, *_: Any,
) -> Tensor:  # fmt: skip
    tables = [(weight, tokens)]
    tables += [(position_weight, positions_of(tokens, positions, first_position))]
    if types is not None and type_weight is not None:
        tables += [(type_weight, types)]
    return _sum_of_rows(tokens, tables)


def _embedding_add_backward(
    dy: Tensor, tokens: Tensor, positions: Tensor | None, types: Tensor | None, rows: int,
    position_rows: int, type_rows: int, first_position: int, padding_idx: int, need_dweight: bool,
    need_dposition_weight: bool, need_dtype_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    def gradient(needed: bool, indices: Tensor | None, count: int, padding: int = -1) -> Tensor:
        if not needed or indices is None:
            return dy.new_empty(0)
        return _gradient(dy, indices.expand(tokens.shape), count, padding)

    places = positions_of(tokens, positions, first_position)
    return (
        gradient(need_dweight, tokens, rows, padding_idx),
        gradient(need_dposition_weight, places, position_rows),
        gradient(need_dtype_weight, types, type_rows),
    )


# (forward, backward, inference)
EMBEDDING = (_embedding, _embedding_backward, _embedding)
EMBEDDING_ADD = (_embedding_add, _embedding_add_backward, _embedding_add)
