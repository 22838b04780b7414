# SPDX-License-Identifier: MIT
"""attention in Triton, with the signatures of the raw ops: FlashAttention-2.

Forward: a program owns a block of a head's queries and visits the keys that they see. Backward: one
kernel owns queries (dq), one owns keys and visits the queries of all heads that share them (dk,
dv), and one, where asked for, owns a part of the bias' gradient. What a program owns nobody else
adds to, so results repeat bit for bit.
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

from ..._errors import ArgumentTypeError
from .. import _philox
from .._dtype import accumulate_dtype
from .._heads import empty_heads
from . import _formula
from ._formula import Inputs, Options
from ._scores_triton import (
    LN2,
    LOG2E,
    Features,
    HeadNumbers,
    Rows,
    ScoreMap,
    Sizes,
    Statics,
    dot,
    dropped,
    finite,
    head_of,
    load_rows,
    scores,
    seeing_queries,
    seen_keys,
    sequence,
    shift_of,
    statistics_of,
    store_rows,
)

# ---- forward ------------------------------------------------------------------------------------


@triton.jit
def _attend(
    acc, maximum, total, q, k_head, k_row, v_head, v_row, start, stop, first, row0, batch, head,
    shift, queries, keys, f, n, s, MASKED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Softmax and its product with the values, carried over keys from `start` to `stop`."""
    row = (row0 + tl.arange(0, ROWS))[:, None]
    for col0 in range(start, stop, COLS):
        k = load_rows(k_head, k_row, col0, keys, MASKED, s.dim, COLS, s.block_dim)
        product = dot(q, tl.trans(k), tl.zeros((ROWS, COLS), s.acc), s)
        col = (col0 + tl.arange(0, COLS))[None, :]
        z, _ = scores(product, row, col, batch, head, shift, queries, keys, f, n, s, MASKED)
        reached = tl.maximum(maximum, tl.max(z, 1))
        reference = finite(reached)
        p = tl.exp2(z - reference[:, None])
        faded = tl.exp2(maximum - reference)
        total = total * faded + tl.sum(p, 1)
        maximum = reached
        p = dropped(p, first, row0, col0, f, n, s, ROWS, COLS, False)
        v = load_rows(v_head, v_row, col0, keys, MASKED, s.value_dim, COLS, s.block_value_dim)
        acc = dot(p, v, acc * faded[:, None], s)
    return acc, maximum, total


@triton.jit
def _forward(
    q, k, v, out, lse, f, n, s: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """out and lse of one block of queries. The last blocks, which see most, come first."""
    row0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2)
    q_begin, queries, k_begin, keys = sequence(f, n, batch)
    if row0 >= queries:
        return
    shift = shift_of(queries, keys, s)
    first = statistics_of(n, batch, head) + q_begin
    kv_head = head // n.group
    k_head = head_of(k, batch, k_begin, kv_head)
    v_head = head_of(v, batch, k_begin, kv_head)
    q_tile = load_rows(head_of(q, batch, q_begin, head), q.row, row0, queries, True, s.dim, ROWS,
                       s.block_dim)  # fmt: skip
    acc = tl.zeros((ROWS, s.block_value_dim), s.acc)
    maximum = tl.full((ROWS,), -float("inf"), s.acc)
    total = tl.zeros((ROWS,), s.acc)
    if f.sinks is not None:
        maximum = tl.zeros((ROWS,), s.acc) + tl.load(f.sinks + head) * LOG2E
        total = tl.exp2(maximum - finite(maximum))
    begin, whole_begin, whole_end, end = seen_keys(row0, row0 + ROWS, shift, queries, keys, n, s,
                                                   COLS)  # fmt: skip
    if s.has_left:
        acc, maximum, total = _attend(
            acc, maximum, total, q_tile, k_head, k.row, v_head, v.row, begin, whole_begin, first,
            row0, batch, head, shift, queries, keys, f, n, s, True, ROWS, COLS,
        )  # fmt: skip
    acc, maximum, total = _attend(
        acc, maximum, total, q_tile, k_head, k.row, v_head, v.row, whole_begin, whole_end, first,
        row0, batch, head, shift, queries, keys, f, n, s, False, ROWS, COLS,
    )  # fmt: skip
    acc, maximum, total = _attend(
        acc, maximum, total, q_tile, k_head, k.row, v_head, v.row, whole_end, end, first,
        row0, batch, head, shift, queries, keys, f, n, s, True, ROWS, COLS,
    )  # fmt: skip
    dead = total == 0.0
    row = row0 + tl.arange(0, ROWS)
    statistic = tl.where(dead, -float("inf"), maximum * LN2 + tl.log(tl.where(dead, 1.0, total)))
    tl.store(lse + first + row, statistic, mask=row < queries)
    acc = acc / tl.where(dead, 1.0, total)[:, None]
    store_rows(head_of(out, batch, q_begin, head), out.row, row0, queries, acc, s.value_dim, ROWS,
               s.block_value_dim)  # fmt: skip


# ---- backward -----------------------------------------------------------------------------------


@triton.jit
def _delta(
    out, dout, dlse, delta, f, n, s: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,  # noqa: ARG001
):  # fmt: skip
    """The sum of out * dout of each query, less the gradient of its log-sum-exp."""
    row0 = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2)
    q_begin, queries, _, _ = sequence(f, n, batch)
    if row0 >= queries:
        return
    first = statistics_of(n, batch, head) + q_begin
    a = load_rows(head_of(out, batch, q_begin, head), out.row, row0, queries, True, s.value_dim,
                  ROWS, s.block_value_dim)  # fmt: skip
    b = load_rows(head_of(dout, batch, q_begin, head), dout.row, row0, queries, True, s.value_dim,
                  ROWS, s.block_value_dim)  # fmt: skip
    row = row0 + tl.arange(0, ROWS)
    x = tl.sum(a.to(s.acc) * b.to(s.acc), 1)
    if dlse is not None:
        x -= tl.load(dlse + first + row, mask=row < queries, other=0.0)
    tl.store(delta + first + row, x, mask=row < queries)


@triton.jit
def _statistics(lse, delta, first, row0, queries, ROWS: tl.constexpr):
    """The log-sum-exp of a block of queries, in units of log2, and delta."""
    row = row0 + tl.arange(0, ROWS)
    x = tl.load(lse + first + row, mask=row < queries, other=0.0)
    return finite(x) * LOG2E, tl.load(delta + first + row, mask=row < queries, other=0.0)


@triton.jit
def _gradient_of_queries(
    dq, q, dout, lse, delta, k_head, k_row, v_head, v_row, start, stop, first, row0, batch, head,
    shift, queries, keys, f, n, s, MASKED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = (row0 + tl.arange(0, ROWS))[:, None]
    for col0 in range(start, stop, COLS):
        k = load_rows(k_head, k_row, col0, keys, MASKED, s.dim, COLS, s.block_dim)
        v = load_rows(v_head, v_row, col0, keys, MASKED, s.value_dim, COLS, s.block_value_dim)
        product = dot(q, tl.trans(k), tl.zeros((ROWS, COLS), s.acc), s)
        col = (col0 + tl.arange(0, COLS))[None, :]
        z, slope = scores(product, row, col, batch, head, shift, queries, keys, f, n, s, MASKED)
        p = tl.exp2(z - lse[:, None])
        dp = dot(dout, tl.trans(v), tl.zeros((ROWS, COLS), s.acc), s)
        dp = dropped(dp, first, row0, col0, f, n, s, ROWS, COLS, False)
        dq = dot(p * (dp - delta[:, None]) * slope, k, dq, s)
    return dq


@triton.jit
def _backward_queries(
    q, k, v, dout, lse, delta, dq, f, n, s: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2)
    q_begin, queries, k_begin, keys = sequence(f, n, batch)
    if row0 >= queries:
        return
    shift = shift_of(queries, keys, s)
    first = statistics_of(n, batch, head) + q_begin
    k_head = head_of(k, batch, k_begin, head // n.group)
    v_head = head_of(v, batch, k_begin, head // n.group)
    q_tile = load_rows(head_of(q, batch, q_begin, head), q.row, row0, queries, True, s.dim, ROWS,
                       s.block_dim)  # fmt: skip
    g_tile = load_rows(head_of(dout, batch, q_begin, head), dout.row, row0, queries, True,
                       s.value_dim, ROWS, s.block_value_dim)  # fmt: skip
    lse2, delta_rows = _statistics(lse, delta, first, row0, queries, ROWS)
    total = tl.zeros((ROWS, s.block_dim), s.acc)
    begin, whole_begin, whole_end, end = seen_keys(row0, row0 + ROWS, shift, queries, keys, n, s,
                                                   COLS)  # fmt: skip
    if s.has_left:
        total = _gradient_of_queries(
            total, q_tile, g_tile, lse2, delta_rows, k_head, k.row, v_head, v.row, begin,
            whole_begin, first, row0, batch, head, shift, queries, keys, f, n, s, True, ROWS, COLS,
        )  # fmt: skip
    total = _gradient_of_queries(
        total, q_tile, g_tile, lse2, delta_rows, k_head, k.row, v_head, v.row, whole_begin,
        whole_end, first, row0, batch, head, shift, queries, keys, f, n, s, False, ROWS, COLS,
    )  # fmt: skip
    total = _gradient_of_queries(
        total, q_tile, g_tile, lse2, delta_rows, k_head, k.row, v_head, v.row, whole_end, end,
        first, row0, batch, head, shift, queries, keys, f, n, s, True, ROWS, COLS,
    )  # fmt: skip
    store_rows(head_of(dq, batch, q_begin, head), dq.row, row0, queries, total * s.scale, s.dim,
               ROWS, s.block_dim)  # fmt: skip


@triton.jit
def _gradients_of_keys(
    dk, dv, k, v, q_head, q_row, g_head, g_row, lse, delta, start, stop, first, col0, batch, head,
    shift, queries, keys, f, n, s, MASKED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """From queries `start` to `stop` of one head. Tiles are (keys, queries)."""
    col = (col0 + tl.arange(0, COLS))[:, None]
    for row0 in range(start, stop, ROWS):
        q = load_rows(q_head, q_row, row0, queries, MASKED, s.dim, ROWS, s.block_dim)
        g = load_rows(g_head, g_row, row0, queries, MASKED, s.value_dim, ROWS, s.block_value_dim)
        lse2, delta_rows = _statistics(lse, delta, first, row0, queries, ROWS)
        product = dot(k, tl.trans(q), tl.zeros((COLS, ROWS), s.acc), s)
        row = (row0 + tl.arange(0, ROWS))[None, :]
        z, slope = scores(product, row, col, batch, head, shift, queries, keys, f, n, s, MASKED)
        p = tl.exp2(z - lse2[None, :])
        dv = dot(dropped(p, first, row0, col0, f, n, s, ROWS, COLS, True), g, dv, s)
        dp = dot(v, tl.trans(g), tl.zeros((COLS, ROWS), s.acc), s)
        dp = dropped(dp, first, row0, col0, f, n, s, ROWS, COLS, True)
        dk = dot(p * (dp - delta_rows[None, :]) * slope, q, dk, s)
    return dk, dv


@triton.jit
def _backward_keys(
    q, k, v, dout, lse, delta, dk, dv, f, n, s: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    col0 = tl.program_id(0) * COLS
    kv_head = tl.program_id(1)
    batch = tl.program_id(2)
    q_begin, queries, k_begin, keys = sequence(f, n, batch)
    if col0 >= keys:
        return
    shift = shift_of(queries, keys, s)
    k_tile = load_rows(head_of(k, batch, k_begin, kv_head), k.row, col0, keys, True, s.dim, COLS,
                       s.block_dim)  # fmt: skip
    v_tile = load_rows(head_of(v, batch, k_begin, kv_head), v.row, col0, keys, True, s.value_dim,
                       COLS, s.block_value_dim)  # fmt: skip
    dk_sum = tl.zeros((COLS, s.block_dim), s.acc)
    dv_sum = tl.zeros((COLS, s.block_value_dim), s.acc)
    begin, whole_begin, whole_end, end = seeing_queries(col0, col0 + COLS, shift, queries, keys, n,
                                                        s, ROWS)  # fmt: skip
    for head in range(kv_head * n.group, (kv_head + 1) * n.group):
        first = statistics_of(n, batch, head) + q_begin
        q_head = head_of(q, batch, q_begin, head)
        g_head = head_of(dout, batch, q_begin, head)
        if s.has_right:
            dk_sum, dv_sum = _gradients_of_keys(
                dk_sum, dv_sum, k_tile, v_tile, q_head, q.row, g_head, dout.row, lse, delta, begin,
                whole_begin, first, col0, batch, head, shift, queries, keys, f, n, s, True, ROWS,
                COLS,
            )  # fmt: skip
        dk_sum, dv_sum = _gradients_of_keys(
            dk_sum, dv_sum, k_tile, v_tile, q_head, q.row, g_head, dout.row, lse, delta,
            whole_begin, whole_end, first, col0, batch, head, shift, queries, keys, f, n, s, False,
            ROWS, COLS,
        )  # fmt: skip
        dk_sum, dv_sum = _gradients_of_keys(
            dk_sum, dv_sum, k_tile, v_tile, q_head, q.row, g_head, dout.row, lse, delta, whole_end,
            end, first, col0, batch, head, shift, queries, keys, f, n, s, True, ROWS, COLS,
        )  # fmt: skip
    store_rows(head_of(dk, batch, k_begin, kv_head), dk.row, col0, keys, dk_sum * s.scale, s.dim,
               COLS, s.block_dim)  # fmt: skip
    store_rows(head_of(dv, batch, k_begin, kv_head), dv.row, col0, keys, dv_sum, s.value_dim, COLS,
               s.block_value_dim)  # fmt: skip


@triton.jit
def _backward_bias(
    q, k, v, dout, lse, delta, dbias, map_heads, batches, heads, f, n, s: tl.constexpr,
    ROWS_SHARE: tl.constexpr, COLS_SHARE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """One tile of dbias: the sum over `batches` and `heads`, and over the rows or columns."""
    map_batch = tl.program_id(2) // map_heads
    map_head = tl.program_id(2) % map_heads
    queries, keys = n.queries, n.keys
    shift = shift_of(queries, keys, s)
    row_begin = tl.program_id(0) * ROWS
    row_end = queries if ROWS_SHARE else row_begin + ROWS
    col_begin = tl.program_id(1) * COLS
    col_end = keys if COLS_SHARE else col_begin + COLS
    total = tl.zeros((ROWS, COLS), s.acc)
    for item in range(batches * heads):
        batch = map_batch + item // heads
        head = map_head + item % heads
        first = statistics_of(n, batch, head)
        q_head = head_of(q, batch, 0, head)
        g_head = head_of(dout, batch, 0, head)
        k_head = head_of(k, batch, 0, head // n.group)
        v_head = head_of(v, batch, 0, head // n.group)
        for row0 in range(row_begin, row_end, ROWS):
            row = (row0 + tl.arange(0, ROWS))[:, None]
            q_tile = load_rows(q_head, q.row, row0, queries, True, s.dim, ROWS, s.block_dim)
            g_tile = load_rows(g_head, dout.row, row0, queries, True, s.value_dim, ROWS,
                               s.block_value_dim)  # fmt: skip
            lse2, delta_rows = _statistics(lse, delta, first, row0, queries, ROWS)
            for col0 in range(col_begin, col_end, COLS):
                k_tile = load_rows(k_head, k.row, col0, keys, True, s.dim, COLS, s.block_dim)
                v_tile = load_rows(v_head, v.row, col0, keys, True, s.value_dim, COLS,
                                   s.block_value_dim)  # fmt: skip
                col = (col0 + tl.arange(0, COLS))[None, :]
                product = dot(q_tile, tl.trans(k_tile), tl.zeros((ROWS, COLS), s.acc), s)
                z, _ = scores(product, row, col, batch, head, shift, queries, keys, f, n, s, True)
                dp = dot(g_tile, tl.trans(v_tile), tl.zeros((ROWS, COLS), s.acc), s)
                dp = dropped(dp, first, row0, col0, f, n, s, ROWS, COLS, False)
                total += tl.exp2(z - lse2[:, None]) * (dp - delta_rows[:, None])
    base = dbias.data + tl.cast(map_batch, tl.int64) * dbias.batch + map_head * dbias.head
    row = row_begin + tl.arange(0, ROWS)
    col = col_begin + tl.arange(0, COLS)
    if ROWS_SHARE:
        tl.store(base + col, tl.sum(total, 0), mask=col < keys)
    elif COLS_SHARE:
        tl.store(base + row, tl.sum(total, 1), mask=row < queries)
    else:
        address = base + row.to(tl.int64)[:, None] * dbias.row + col[None, :]
        tl.store(address, total, mask=(row < queries)[:, None] & (col < keys)[None, :])


# ---- launches -----------------------------------------------------------------------------------


class Tile(NamedTuple):
    rows: int
    cols: int
    warps: int
    stages: int


# Of 16-bit operands by the larger head dim, rounded up to a power of two.
FORWARD = {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 2), 256: Tile(64, 32, 4, 2)}
QUERIES = {64: Tile(128, 64, 8, 2), 128: Tile(64, 64, 4, 2), 256: Tile(32, 32, 4, 1)}
KEYS = {64: Tile(64, 64, 4, 2), 128: Tile(32, 128, 8, 2), 256: Tile(32, 32, 4, 1)}
# What goes into a score besides the product needs registers.
FEATURED = {64: Tile(64, 32, 4, 2), 128: Tile(64, 32, 4, 1), 256: Tile(32, 32, 4, 1)}
# float32 has no tensor cores: small tiles stay in registers.
WIDE = {64: Tile(32, 32, 8, 1), 128: Tile(32, 32, 8, 1), 256: Tile(16, 16, 4, 1)}
_DELTA = {dim: Tile(32, 32, 4, 1) for dim in (64, 128, 256)}
_LEAST_DIM = 16  # of a product
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.float32 if _INTERPRETED else tl.bfloat16,  # its matmul knows no bfloat16
}
_UNBOUNDED = 2**30  # further than any key


def _rows(x: Tensor) -> Rows:
    batch = x.stride(0) if x.dim() == 4 else 0
    return Rows(x, batch, x.stride(-3), x.stride(-2))


def _readable(x: Tensor) -> Rows:
    return _rows(x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous())


def _empty(like: Tensor, dim: int) -> Tensor:
    """In the order of `like`; zeros where rows may belong to no sequence."""
    shape = (*like.shape[:-1], dim)
    return like.new_zeros(shape) if like.dim() == 3 else empty_heads(like, *shape)


class _Problem:
    """Checked arguments as the kernels take them."""

    def __init__(self, inputs: Inputs, options: Options) -> None:
        q, k, v = inputs.q, inputs.k, inputs.v
        self.inputs = inputs
        self.q, self.k, self.v = map(_readable, (q, k, v))
        varlen = inputs.cu_seqlens_q is not None
        queries, heads = q.shape[-3:-1]
        keys, kv_heads = k.shape[-3:-1]
        left, right = (min(size, _UNBOUNDED) for size in options[1:3])
        self.batch, self.queries, self.keys = q.shape[0], queries, keys
        if varlen:
            self.batch, self.queries, self.keys = self._longest()
        self.sizes = Sizes(
            queries, keys, heads, heads // kv_heads, 0 if varlen else heads * queries,
            -(-keys // 8), left, right,
        )  # fmt: skip
        self.features = self._features()
        self.statics = self._statics(options)

    def _longest(self) -> tuple[int, int, int]:
        """The number of sequences, and the most queries and keys of one."""
        q_at, k_at = self.inputs.cu_seqlens_q, self.inputs.cu_seqlens_k
        assert q_at is not None
        assert k_at is not None
        sequences = q_at.numel() - 1
        if sequences == 0:
            return 0, 0, 0
        most = torch.stack([q_at.diff().max(), k_at.diff().max()]).tolist()
        return sequences, most[0], most[1]

    def _map(self, x: Tensor | None) -> ScoreMap | None:
        if x is None:
            return None
        q = self.inputs.q
        x = x.view(torch.uint8) if x.dtype is torch.bool else x
        x = x.expand(q.shape[0], q.shape[2], q.shape[1], self.inputs.k.shape[1])
        return ScoreMap(x, *x.stride())

    def _features(self) -> Features:
        inputs, slopes = self.inputs, self.inputs.alibi_slopes
        if slopes is not None:
            slopes = slopes.expand(self.batch, inputs.q.shape[-2])
        return Features(
            self._map(inputs.bias),
            self._map(inputs.mask),
            None if slopes is None else HeadNumbers(slopes, *slopes.stride()),
            None if inputs.sinks is None else inputs.sinks.contiguous(),
            None if inputs.seed is None else inputs.seed.to(inputs.q.device),
            inputs.cu_seqlens_q,
            inputs.cu_seqlens_k,
        )

    def _statics(self, options: Options) -> Statics:
        q, v = self.inputs.q, self.inputs.v
        below = _philox.threshold(options.dropout)
        wide = q.dtype is torch.float64
        fast = q.is_cuda and torch.backends.cuda.matmul.allow_tf32
        values = (
            options.scale, options.softcap, below,
            _philox.scale(options.dropout),
            options.window_left >= 0, options.window_right >= 0, not options.top_left,
            q.shape[-1], v.shape[-1],
            max(triton.next_power_of_2(q.shape[-1]), _LEAST_DIM),
            max(triton.next_power_of_2(v.shape[-1]), _LEAST_DIM),
            _DTYPES[q.dtype], tl.float64 if wide else tl.float32,
            "tf32" if fast and q.dtype is torch.float32 else "ieee", 12 if wide else 6,
        )  # fmt: skip
        return Statics(*map(tl.constexpr, values))

    def launch(
        self, kernel: Any, table: dict[int, Tile], over: str, heads: int, *arguments: Any
    ) -> None:
        """A program for each block of `over`, and for each head and sequence."""
        tile = self.tile(table)
        block = tile.rows if over == "queries" else tile.cols
        blocks = triton.cdiv(getattr(self, over), block)
        self.start(kernel, tile, (blocks, heads, self.batch), *arguments)

    def tile(self, table: dict[int, Tile]) -> Tile:
        dim = max(self.statics.block_dim.value, self.statics.block_value_dim.value, 64)
        if self.inputs.q.dtype.itemsize > 2:
            return WIDE[dim]
        featured = self.features.bias or self.features.mask or self.features.seed is not None
        return (FEATURED if featured or self.statics.softcap.value else table)[dim]

    def start(
        self, kernel: Any, tile: Tile, grid: tuple[int, int, int], *arguments: Any, **more: Any
    ) -> None:
        if not all(grid):
            return
        with torch.cuda.device_of(self.inputs.q):
            kernel[grid](
                *arguments, self.features, self.sizes, self.statics, ROWS=tile.rows,
                COLS=tile.cols, num_warps=tile.warps, num_stages=tile.stages, **more,
            )  # fmt: skip


def _gradient_of_bias(problem: _Problem, arguments: tuple[Any, ...], like: Tensor) -> Tensor:
    """Of sums over batches and heads where bias varies with query and key, else over one of these.

    That is never more memory than bias has, or than grows with the length. PyTorch adds the rest.
    """
    bias = problem.inputs.bias
    assert bias is not None
    shape = _formula.bias_shape(bias)
    sizes = problem.sizes
    cols_share = shape[3] == 1 and problem.keys > 1
    rows_share = shape[2] == 1 and problem.queries > 1 and not cols_share
    full = not (cols_share or rows_share)
    batches = shape[0] if full else problem.batch
    heads = shape[1] if full else sizes.heads
    sums = like.new_empty(
        batches, heads, 1 if rows_share else problem.queries, 1 if cols_share else problem.keys
    )
    tile = problem.tile(FEATURED)
    grid = (
        triton.cdiv(sums.shape[2], tile.rows), triton.cdiv(sums.shape[3], tile.cols),
        batches * heads,
    )  # fmt: skip
    problem.start(
        _backward_bias, tile, grid, *arguments, ScoreMap(sums, *sums.stride()), heads,
        problem.batch // batches, sizes.heads // heads, ROWS_SHARE=rows_share,
        COLS_SHARE=cols_share,
    )  # fmt: skip
    return sums.sum_to_size(shape)


def _gradient_of_sinks(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    dead = lse == -torch.inf
    power = (sinks.unsqueeze(-1) - lse.masked_fill(dead, 0.0)).exp().masked_fill(dead, 0.0)
    by_head = -(power * delta).sum(-1)
    return by_head.sum(0) if by_head.dim() == 2 else by_head


def _check(q: Tensor) -> None:
    if q.dtype is torch.float64 and not _INTERPRETED:
        raise ArgumentTypeError(
            "attention: q is float64, expected float32, float16 or bfloat16 (Triton compiles no"
            " product of float64)"
        )


def _resolved(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the sign of lazily negated tensors in memory, where alone a kernel sees it."""
    return tuple(x.resolve_neg() if isinstance(x, Tensor) else x for x in arguments)


def attention_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    arguments = _resolved(arguments)
    inputs, options, _ = _formula.split(arguments)
    _check(inputs.q)
    if not (inputs.q.numel() and inputs.k.numel()):
        return _formula.forward(*arguments)
    problem = _Problem(inputs, options)
    q, heads = inputs.q, problem.sizes.heads
    out = _empty(q, inputs.v.shape[-1])
    lse = q.new_full((*q.shape[:-3], heads, q.shape[-3]), -torch.inf, dtype=accumulate_dtype(q))
    problem.launch(
        _forward, FORWARD, "queries", heads, problem.q, problem.k, problem.v, _rows(out), lse
    )
    return out, lse


def attention_backward(
    dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dout, dlse, out, lse, *rest = _resolved((dout, dlse, out, lse, *arguments))
    arguments = tuple(rest)
    inputs, options, (_, need_dbias, need_dsinks) = _formula.split(arguments)
    if not (inputs.q.numel() and inputs.k.numel()):
        return _formula.backward(dout, dlse, out, lse, *arguments)
    problem = _Problem(inputs, options)
    sizes = problem.sizes
    g = _readable(dout)
    dlse = None if dlse is None else dlse.contiguous()
    lse = lse.contiguous()
    delta = torch.zeros_like(lse)
    problem.launch(_delta, _DELTA, "queries", sizes.heads, _readable(out), g, dlse, delta)
    shared = (problem.q, problem.k, problem.v, g, lse, delta)
    dq, dk, dv = (_empty(x, x.shape[-1]) for x in inputs[:3])
    problem.launch(_backward_queries, QUERIES, "queries", sizes.heads, *shared, _rows(dq))
    kv_heads = sizes.heads // sizes.group
    problem.launch(_backward_keys, KEYS, "keys", kv_heads, *shared, _rows(dk), _rows(dv))
    dbias = dsinks = inputs.q.new_empty(0)
    if need_dbias:
        dbias = _gradient_of_bias(problem, shared, lse)
    if need_dsinks:
        assert inputs.sinks is not None
        dsinks = _gradient_of_sinks(inputs.sinks.to(lse.dtype), lse, delta)
    return dq, dk, dv, dbias, dsinks
