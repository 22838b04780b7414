# SPDX-License-Identifier: MIT
"""What attention's Triton kernels share: blocks of rows, scores, dropout, what a block sees.

Scores are in units of log2, so that exp2 needs no factor. A tile of them is either (queries, keys)
or its transpose: ``row`` and ``col``, the places of its queries and keys, broadcast to it.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


class Rows(NamedTuple):
    """Rows of heads, with a last stride of 1."""

    data: Tensor
    batch: int
    row: int
    head: int


class ScoreMap(NamedTuple):
    """One number a score; a stride of 0 broadcasts."""

    data: Tensor
    batch: int
    head: int
    row: int
    col: int


class HeadNumbers(NamedTuple):
    data: Tensor
    batch: int
    head: int


class Sizes(NamedTuple):
    """Of one call. Sequences of different lengths share one row of batches."""

    queries: int  # rows of q
    keys: int
    heads: int
    group: int
    statistics: int  # from one batch to the next in the log-sum-exp
    calls: int  # of Philox for a query
    left: int
    right: int


class Features(NamedTuple):
    """What goes into a score besides the product; None where it is not in use."""

    bias: ScoreMap | None
    mask: ScoreMap | None
    slopes: HeadNumbers | None
    sinks: Tensor | None
    seed: Tensor | None
    q_at: Tensor | None
    k_at: Tensor | None


class Statics(NamedTuple):
    """What a kernel is compiled for."""

    scale: Any
    softcap: Any
    below: Any  # an element is dropped where its 16 bits are below this
    kept_by: Any  # and multiplied by this where it is not
    has_left: Any
    has_right: Any
    bottom_right: Any
    dim: Any
    value_dim: Any
    block_dim: Any
    block_value_dim: Any
    operand: Any  # dtype of the products' operands
    acc: Any
    precision: Any
    tanh_terms: Any


# ---- rows ---------------------------------------------------------------------------------------


@triton.jit
def sequence(f, n, batch):
    """The first query, the number of queries, the first key and the number of keys."""
    q_begin, k_begin, queries, keys = 0, 0, n.queries, n.keys
    if f.q_at is not None:
        q_begin, k_begin = tl.load(f.q_at + batch), tl.load(f.k_at + batch)
        queries = tl.load(f.q_at + batch + 1) - q_begin
        keys = tl.load(f.k_at + batch + 1) - k_begin
    return q_begin, queries, k_begin, keys


@triton.jit
def shift_of(queries, keys, s):
    """How far the key on a query's diagonal stands after it."""
    shift = 0
    if s.bottom_right:
        shift = keys - queries
    return shift


@triton.jit
def statistics_of(n, batch, head):
    """The place of a head in the log-sum-exp."""
    return tl.cast(batch, tl.int64) * n.statistics + tl.cast(head, tl.int64) * n.queries


@triton.jit
def head_of(x, batch, begin, head):
    """The address of a sequence's first row."""
    at = tl.cast(batch, tl.int64) * x.batch + tl.cast(begin, tl.int64) * x.row
    return x.data + at + tl.cast(head, tl.int64) * x.head


@triton.jit
def load_rows(base, stride, begin, count, CHECK: tl.constexpr, DIM: tl.constexpr,
              ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Rows from `begin` on, 0 past `count` (where CHECK) and past DIM."""
    d = tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    address = base + tl.cast(begin, tl.int64) * stride + row * stride + d
    if CHECK:
        x = tl.load(address, mask=(begin + row < count) & (d < DIM), other=0.0)
    elif BLOCK != DIM:
        x = tl.load(address, mask=d < DIM, other=0.0)
    else:
        x = tl.load(address)
    return x


@triton.jit
def store_rows(base, stride, begin, count, x, DIM: tl.constexpr, ROWS: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    d = tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    address = base + tl.cast(begin, tl.int64) * stride + row * stride + d
    tl.store(address, x.to(base.dtype.element_ty), mask=(begin + row < count) & (d < DIM))


@triton.jit
def dot(a, b, total, s):
    """total + a @ b"""
    a, b = a.to(s.operand), b.to(s.operand)
    return tl.dot(a, b, total, input_precision=s.precision, out_dtype=s.acc)


@triton.jit
def finite(x):
    """A reference for the exponent that turns exp2(-inf - reference) into 0 and not into NaN."""
    return tl.where(x == -float("inf"), 0.0, x)


# ---- what a block sees --------------------------------------------------------------------------


@triton.jit
def segments(first, last, before, after, count, HAS_BEFORE: tl.constexpr,
             HAS_AFTER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Blocks that rows with diagonals from `first` to `last` see.

    Those from the first to the second of the results in part, then in whole up to the third, and
    in part again up to the fourth.
    """
    begin = 0
    whole_begin = 0
    end = count
    whole_end = count
    if HAS_BEFORE:
        begin = tl.minimum(tl.maximum(first - before, 0), count)
        whole_begin = tl.minimum(tl.maximum(last - before, 0), count)
    if HAS_AFTER:
        end = tl.minimum(tl.maximum(last + after + 1, 0), count)
        whole_end = tl.minimum(tl.maximum(first + after + 1, 0), count)
    begin = begin // BLOCK * BLOCK
    stop = tl.maximum(tl.cdiv(end, BLOCK) * BLOCK, begin)
    whole_begin = tl.minimum(tl.maximum(tl.cdiv(whole_begin, BLOCK) * BLOCK, begin), stop)
    whole_end = tl.minimum(tl.maximum(whole_end // BLOCK * BLOCK, whole_begin), stop)
    return begin, whole_begin, whole_end, stop


@triton.jit
def seen_keys(begin, end, shift, queries, keys, n, s, BLOCK: tl.constexpr):
    """Segments of the keys that queries from `begin` to `end` see."""
    last = tl.minimum(end, queries) - 1
    return segments(begin + shift, last + shift, n.left, n.right, keys, s.has_left, s.has_right,
                    BLOCK)  # fmt: skip


@triton.jit
def seeing_queries(begin, end, shift, queries, keys, n, s, BLOCK: tl.constexpr):
    """Segments of the queries that see keys from `begin` to `end`."""
    last = tl.minimum(end, keys) - 1
    return segments(begin - shift, last - shift, n.right, n.left, queries, s.has_right, s.has_left,
                    BLOCK)  # fmt: skip


# ---- scores -------------------------------------------------------------------------------------


@triton.jit
def _tanh(x, TERMS: tl.constexpr):
    """Near 0 the convergent of x / (1 + x^2 / (3 + x^2 / (5 + ...))), exact to the last bits."""
    square = tl.minimum(x * x, 1.0)
    above_before, above = square * 0.0, square * 0.0 + 1.0
    below_before, below = above, above
    for term in tl.static_range(1, TERMS):
        above_before, above = above, (2 * term + 1) * above + square * above_before
        below_before, below = below, (2 * term + 1) * below + square * below_before
    far = 1.0 - 2.0 / (tl.exp2(tl.abs(x) * (2 * LOG2E)) + 1.0)
    return tl.where(tl.abs(x) < 1.0, x * (above / below), tl.where(x < 0.0, -far, far))


@triton.jit
def _load_map(x, batch, head, row, col, queries, keys):
    base = x.data + tl.cast(batch, tl.int64) * x.batch + tl.cast(head, tl.int64) * x.head
    inside = (row < queries) & (col < keys)
    return tl.load(base + row.to(tl.int64) * x.row + col * x.col, mask=inside, other=0)


@triton.jit
def scores(product, row, col, batch, head, shift, queries, keys, f, n, s, MASKED: tl.constexpr):
    """Scores, -inf where hidden, and the slope of the cap.

    MASKED tells that the window or the end of a sequence runs through the tile.
    """
    slope = 1.0
    if s.softcap != 0:
        tanh = _tanh(product * (s.scale / s.softcap), s.tanh_terms)
        z = tanh * (s.softcap * LOG2E)
        slope = 1.0 - tanh * tanh
    else:
        z = product * (s.scale * LOG2E)
    place = col - row - shift
    if f.slopes is not None:
        steepness = tl.load(f.slopes.data + batch * f.slopes.batch + head * f.slopes.head)
        z -= steepness * LOG2E * tl.abs(place).to(s.acc)
    if f.bias is not None:
        z += _load_map(f.bias, batch, head, row, col, queries, keys).to(s.acc) * LOG2E
    if f.mask is not None:
        takes_part = _load_map(f.mask, batch, head, row, col, queries, keys)
        z = tl.where(takes_part != 0, z, -float("inf"))
    if MASKED:
        visible = (row < queries) & (col < keys)
        if s.has_left:
            visible = visible & (place >= -n.left)
        if s.has_right:
            visible = visible & (place <= n.right)
        z = tl.where(visible, z, -float("inf"))
    return z, slope


@triton.jit
def dropped(x, first, row, col, f, n, s, ROWS: tl.constexpr, COLS: tl.constexpr,
            TRANSPOSED: tl.constexpr):  # fmt: skip
    """`x` without what dropout drops of the tile from query `row` and key `col` on.

    `first` is the place of the sequence's first query in the log-sum-exp.
    """
    if s.below != 0:
        query = first + row + tl.arange(0, ROWS).to(tl.int64)
        call = query[:, None] * n.calls + (col // 8 + tl.arange(0, COLS // 8))[None, :]
        offset = tl.load(f.seed + 1)
        a, b, c, d = tl.philox(
            tl.load(f.seed), (call & 0xFFFFFFFF).to(tl.uint32), (call >> 32).to(tl.uint32),
            (offset & 0xFFFFFFFF).to(tl.uint32), ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32),
        )  # fmt: skip
        words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
        numbers = tl.interleave(words & 0xFFFF, words >> 16).to(tl.int32)
        if TRANSPOSED:
            numbers = tl.trans(numbers)
        x = tl.where(numbers >= s.below, x * s.kept_by, 0.0)
    return x
