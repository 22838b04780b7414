# SPDX-License-Identifier: MIT
"""The graph ops in Triton, with the signatures of the raw ops.

A program owns a segment, and a block of columns or one head of it. It loops over the edges a few at
a time, in order. An edge with an index out of range contributes nothing.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

# Functions have the signatures of the raw ops, even where they do not read every argument.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_rows import accumulate_type, as_rows
from ._formula import MAX, MEAN

_EDGES = 8  # edges that a program loads together
_MOST_COLS = 256

# ---- places -------------------------------------------------------------------------------------


@triton.jit
def _span(offsets, segment, edges):
    begin = tl.minimum(tl.maximum(tl.load(offsets + segment).to(tl.int64), 0), edges)
    end = tl.minimum(tl.maximum(tl.load(offsets + segment + 1).to(tl.int64), begin), edges)
    return begin, end


@triton.jit
def _number(order, place, present, edges, ORDERED: tl.constexpr):
    """The numbers of the edges in places, and which of them exist."""
    number = place
    if ORDERED:
        number = tl.load(order + place, mask=present, other=-1).to(tl.int64)
    present = present & (number >= 0) & (number < edges)
    return tl.where(present, number, 0), present


@triton.jit
def _across(indices, place, number, present, rows, INDEXED: tl.constexpr):
    row = number
    if INDEXED:
        row = tl.load(indices + place, mask=present, other=-1).to(tl.int64)
    present = present & (row >= 0) & (row < rows)
    return tl.where(present, row, 0), present


# ---- reductions ---------------------------------------------------------------------------------


@triton.jit
def _reduce(
    x, stride, y, offsets, indices, order, weight, degrees, chosen, new_chosen, edges, rows, cols,
    heads, head_cols,
    LARGEST: tl.constexpr, MEAN: tl.constexpr, INDEXED: tl.constexpr, ORDERED: tl.constexpr,
    WEIGHTED: tl.constexpr, BY_DEGREES: tl.constexpr, CHOSEN: tl.constexpr, ACC: tl.constexpr,
    EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    begin, end = _span(offsets, segment, edges)
    value = tl.zeros([BLOCK], ACC)
    winner = tl.full([BLOCK], -1, tl.int64)
    for first in range(begin, end, EDGES):
        place = first + tl.arange(0, EDGES).to(tl.int64)
        number, present = _number(order, place, place < end, edges, ORDERED)
        row, present = _across(indices, place, number, present, rows, INDEXED)
        both = present[:, None] & inside[None, :]
        term = tl.load(x + row[:, None] * stride + col[None, :], mask=both, other=0.0).to(ACC)
        if CHOSEN:
            own = tl.load(chosen + row[:, None] * cols + col[None, :], mask=both, other=-1)
            term = tl.where(own.to(tl.int64) == number[:, None], term, 0.0)
        if WEIGHTED:
            at = number[:, None] * heads + (col // head_cols)[None, :]
            term *= tl.load(weight + at, mask=both, other=0.0).to(ACC)
        if BY_DEGREES:
            after = tl.load(degrees + row + 1, mask=present, other=1).to(tl.int64)
            before = tl.load(degrees + row, mask=present, other=0).to(tl.int64)
            term /= (after - before).to(ACC)[:, None]
        if LARGEST:  # one edge at a time
            candidate = tl.sum(term, axis=0)
            at = tl.sum(tl.where(present, number, 0), axis=0)
            has = tl.sum(present.to(tl.int32), axis=0) > 0
            better = (winner < 0) | ((value == value) & ~(candidate <= value))
            value = tl.where(has & better, candidate, value)
            winner = tl.where(has & better, at, winner)
        else:
            value += tl.sum(term, axis=0)
    if MEAN:
        value /= tl.maximum(end - begin, 1).to(ACC)
    tl.store(y + segment * cols + col, value.to(y.dtype.element_ty), mask=inside)
    if LARGEST:
        to = new_chosen + segment * cols + col
        tl.store(to, winner.to(new_chosen.dtype.element_ty), mask=inside)


def _run_reduce(
    x: Tensor, count: int, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    edges: int, weight: Tensor | None = None, degrees: Tensor | None = None,
    chosen: Tensor | None = None, reduce: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    acc = accumulate_type(x)
    cols = x.shape[1]
    y = x.new_empty(count, cols)
    new_chosen = offsets.new_empty(y.shape if reduce == MAX else (0,))
    if y.numel() == 0:
        return y, new_chosen
    block = min(triton.next_power_of_2(cols), _MOST_COLS)
    rows, stride = as_rows(x)
    heads = 1 if weight is None else weight.shape[1]
    with torch.cuda.device_of(x):
        _reduce[(count, triton.cdiv(cols, block))](
            rows, stride, y, offsets.contiguous(), _packed(indices, offsets),
            _packed(order, offsets), _packed(weight, x), _packed(degrees, offsets),
            _packed(chosen, offsets), new_chosen, edges, x.shape[0], cols, heads, cols // heads,
            LARGEST=reduce == MAX, MEAN=reduce == MEAN, INDEXED=indices is not None,
            ORDERED=order is not None, WEIGHTED=weight is not None,
            BY_DEGREES=degrees is not None, CHOSEN=chosen is not None, ACC=acc,
            EDGES=1 if reduce == MAX else _EDGES, BLOCK=block,
        )  # fmt: skip
    return y, new_chosen


def _packed(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """Replaces an absent tensor: kernels take a tensor for every argument."""
    return otherwise if tensor is None else tensor.contiguous()


# ---- edges --------------------------------------------------------------------------------------


@triton.jit
def _edges(
    a, a_stride, b, b_stride, y, offsets, indices, order, weight, chosen, edges, rows, cols, heads,
    head_cols,
    SPREAD: tl.constexpr, MEAN: tl.constexpr, INDEXED: tl.constexpr, ORDERED: tl.constexpr,
    WEIGHTED: tl.constexpr, CHOSEN: tl.constexpr, ACC: tl.constexpr, EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    begin, end = _span(offsets, segment, edges)
    for first in range(begin, end, EDGES):
        place = first + tl.arange(0, EDGES).to(tl.int64)
        number, exists = _number(order, place, place < end, edges, ORDERED)
        row, present = _across(indices, place, number, exists, rows, INDEXED)
        total = tl.zeros([EDGES], ACC)
        for start in range(0, head_cols, BLOCK):
            in_head = start + tl.arange(0, BLOCK)
            inside = in_head < head_cols
            col = head * head_cols + in_head
            both = exists[:, None] & inside[None, :]
            own = tl.load(a + segment * a_stride + col, mask=inside, other=0.0).to(ACC)
            takes_part = both
            if CHOSEN:
                winner = tl.load(chosen + segment * cols + col, mask=inside, other=-1).to(tl.int64)
                takes_part = both & (winner[None, :] == number[:, None])
            if SPREAD:
                term = tl.where(takes_part, own[None, :], 0.0)
                if WEIGHTED:
                    factor = tl.load(weight + number * heads + head, mask=exists, other=0.0)
                    term *= factor.to(ACC)[:, None]
                if MEAN:
                    term /= tl.maximum(end - begin, 1).to(ACC)
                to = y + number[:, None] * cols + col[None, :]
                tl.store(to, term.to(y.dtype.element_ty), mask=both)
            else:
                takes_part = takes_part & present[:, None]
                at = b + row[:, None] * b_stride + col[None, :]
                other = tl.load(at, mask=takes_part, other=0.0).to(ACC)
                total += tl.sum(tl.where(takes_part, own[None, :] * other, 0.0), axis=1)
        if not SPREAD:
            if MEAN:
                total /= tl.maximum(end - begin, 1).to(ACC)
            tl.store(y + number * heads + head, total.to(y.dtype.element_ty), mask=exists)


def _run_edges(
    a: Tensor, b: Tensor | None, heads: int, offsets: Tensor, indices: Tensor | None,
    order: Tensor | None, edges: int, weight: Tensor | None = None, chosen: Tensor | None = None,
    mean: bool = False,
) -> Tensor:  # fmt: skip
    """Computes products with rows of ``b``, or spreads rows of ``a`` over their edges."""
    acc = accumulate_type(a)
    cols = a.shape[1]
    y = a.new_empty(edges, cols if b is None else heads)
    if y.numel() == 0:
        return y
    head_cols = cols // heads
    block = max(min(triton.next_power_of_2(head_cols), _MOST_COLS), 1)
    a_rows, a_stride = as_rows(a)
    b_rows, b_stride = (a_rows, a_stride) if b is None else as_rows(b)
    with torch.cuda.device_of(a):
        _edges[(offsets.numel() - 1, heads)](
            a_rows, a_stride, b_rows, b_stride, y, offsets.contiguous(),
            _packed(indices, offsets), _packed(order, offsets), _packed(weight, a),
            _packed(chosen, offsets), edges, edges if b is None else b.shape[0], cols, heads,
            head_cols, SPREAD=b is None, MEAN=mean, INDEXED=indices is not None and b is not None,
            ORDERED=order is not None, WEIGHTED=weight is not None, CHOSEN=chosen is not None,
            ACC=acc, EDGES=_EDGES, BLOCK=block,
        )  # fmt: skip
    return y


# ---- softmax ------------------------------------------------------------------------------------


@triton.jit
def _softmax(
    x, x_stride, dy, dy_stride, y, offsets, order, edges, cols,
    BACKWARD: tl.constexpr, ORDERED: tl.constexpr, ACC: tl.constexpr, EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    begin, end = _span(offsets, segment, edges)
    top = tl.full([BLOCK], float("-inf"), ACC)
    total = tl.zeros([BLOCK], ACC)
    if not BACKWARD:
        for first in range(begin, end, EDGES):
            place = first + tl.arange(0, EDGES).to(tl.int64)
            number, present = _number(order, place, place < end, edges, ORDERED)
            both = present[:, None] & inside[None, :]
            at = x + number[:, None] * x_stride + col[None, :]
            z = tl.load(at, mask=both, other=float("-inf")).to(ACC)
            z = tl.where(z == z, z, float("-inf"))
            top = tl.maximum(top, tl.max(z, axis=0))
    for first in range(begin, end, EDGES):
        place = first + tl.arange(0, EDGES).to(tl.int64)
        number, present = _number(order, place, place < end, edges, ORDERED)
        both = present[:, None] & inside[None, :]
        z = tl.load(x + number[:, None] * x_stride + col[None, :], mask=both, other=0.0).to(ACC)
        if BACKWARD:
            g = tl.load(dy + number[:, None] * dy_stride + col[None, :], mask=both, other=0.0)
            total += tl.sum(z * g.to(ACC), axis=0)
        else:
            total += tl.sum(tl.where(both, tl.exp(z - top[None, :]), 0.0), axis=0)
    for first in range(begin, end, EDGES):
        place = first + tl.arange(0, EDGES).to(tl.int64)
        number, present = _number(order, place, place < end, edges, ORDERED)
        both = present[:, None] & inside[None, :]
        z = tl.load(x + number[:, None] * x_stride + col[None, :], mask=both, other=0.0).to(ACC)
        if BACKWARD:
            g = tl.load(dy + number[:, None] * dy_stride + col[None, :], mask=both, other=0.0)
            z *= g.to(ACC) - total[None, :]
        else:
            z = tl.exp(z - top[None, :]) / total[None, :]
        to = y + number[:, None] * cols + col[None, :]
        tl.store(to, z.to(y.dtype.element_ty), mask=both)


def _run_softmax(x: Tensor, dy: Tensor | None, offsets: Tensor, order: Tensor | None) -> Tensor:
    acc = accumulate_type(x)
    edges, cols = x.shape
    y = x.new_empty(edges, cols)
    if y.numel() == 0:
        return y
    block = min(triton.next_power_of_2(cols), _MOST_COLS)
    rows, stride = as_rows(x)
    dy_rows, dy_stride = (rows, stride) if dy is None else as_rows(dy)
    with torch.cuda.device_of(x):
        _softmax[(offsets.numel() - 1, triton.cdiv(cols, block))](
            rows, stride, dy_rows, dy_stride, y, offsets.contiguous(), _packed(order, offsets),
            edges, cols, BACKWARD=dy is not None, ORDERED=order is not None, ACC=acc,
            EDGES=2 * _EDGES, BLOCK=block,
        )  # fmt: skip
    return y


# ---- the raw ops --------------------------------------------------------------------------------


def _edges_of(x: Tensor, indices: Tensor | None) -> int:
    return x.shape[0] if indices is None else indices.numel()


def _gather_reduce(
    x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    weight: Tensor | None, reduce: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    count, edges = offsets.numel() - 1, _edges_of(x, indices)
    return _run_reduce(x, count, offsets, indices, order, edges, weight, reduce=reduce)


def _gather_reduce_inference(*arguments: Any) -> Tensor:
    return _gather_reduce(*arguments)[0]


def _gather_reduce_backward(
    dy: Tensor, x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    weight: Tensor | None, chosen: Tensor, reduce: int, need_dx: bool, need_dweight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    edges = _edges_of(x, indices)
    winners = chosen if reduce == MAX else None
    dx = dweight = dy.new_empty(0)
    if need_dx and indices is None:
        heads = 1 if weight is None else weight.shape[1]
        dx = _run_edges(dy, None, heads, offsets, None, order, edges, weight, winners,
                        reduce == MEAN)  # fmt: skip
    elif need_dx:
        assert back_offsets is not None
        degrees = offsets if reduce == MEAN else None
        dx, _ = _run_reduce(dy, x.shape[0], back_offsets, back_indices, back_order, edges, weight,
                            degrees, winners)  # fmt: skip
    if need_dweight and weight is not None:
        dweight = _run_edges(dy, x, weight.shape[1], offsets, indices, order, edges,
                             chosen=winners, mean=reduce == MEAN)  # fmt: skip
    return dx, dweight


def _edge_dot(
    a: Tensor, b: Tensor, offsets: Tensor, indices: Tensor, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    heads: int,
) -> Tensor:  # fmt: skip
    return _run_edges(a, b, heads, offsets, indices, order, indices.numel())


def _edge_dot_backward(
    dy: Tensor, a: Tensor, b: Tensor, offsets: Tensor, indices: Tensor, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    need_da: bool, need_db: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    edges = indices.numel()
    da = db = dy.new_empty(0)
    if need_da:
        da, _ = _run_reduce(b, a.shape[0], offsets, indices, order, edges, dy)
    if need_db:
        assert back_offsets is not None
        db, _ = _run_reduce(a, b.shape[0], back_offsets, back_indices, back_order, edges, dy)
    return da, db


def _segment_softmax(x: Tensor, offsets: Tensor, order: Tensor | None) -> Tensor:
    return _run_softmax(x, None, offsets, order)


def _segment_softmax_backward(
    dy: Tensor, y: Tensor, offsets: Tensor, order: Tensor | None
) -> Tensor:
    return _run_softmax(y, dy, offsets, order)


# (forward, backward, inference)
GATHER_REDUCE = (_gather_reduce, _gather_reduce_backward, _gather_reduce_inference)
EDGE_DOT = (_edge_dot, _edge_dot_backward, _edge_dot)
SEGMENT_SOFTMAX = (_segment_softmax, _segment_softmax_backward, _segment_softmax)
