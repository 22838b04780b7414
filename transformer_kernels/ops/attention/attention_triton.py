# SPDX-License-Identifier: MIT
"""attention in Triton, with the signatures of the raw ops: a readable FlashAttention-2 (Dao 2023,
arXiv:2307.08691) with causality, bias, mask and grouped heads.

Forward, a program owns a block of a head's queries and visits the keys that they see. Backward, one
kernel owns queries (dq), and one owns keys and visits the queries of all heads that share them (dk,
dv). No other program adds to what a program owns, so results repeat bit for bit.
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

from .._dtype import accumulate_dtype
from .._heads import empty_heads
from . import _formula
from ._arguments import refuse_in_triton, refuse_learned_bias
from ._formula import Inputs, Options

LOG2E = tl.constexpr(1.4426950408889634)


class Heads(NamedTuple):
    """A tensor (B, T, H, D) with a last stride of 1."""

    data: Tensor
    batch: int
    row: int
    head: int
    rows: int
    dim: int


class ScoreMap(NamedTuple):
    """A bias or mask, with one number per score; a stride of 0 broadcasts."""

    data: Tensor
    batch: int
    head: int
    row: int
    col: int


class Problem(NamedTuple):
    bias: ScoreMap | None
    mask: ScoreMap | None
    queries: int
    keys: int
    heads: int
    group: int  # heads of q that share one of k and v
    shift: int  # position of the key on the first query's diagonal


class RowSums(NamedTuple):
    """One number per query of each head."""

    lse: Tensor
    rest: Tensor  # the rounding error of lse
    delta: Tensor


class Statics(NamedTuple):
    """The constants that a kernel is compiled for."""

    rows: Any  # queries per tile
    cols: Any  # keys per tile
    dim: Any  # of q and k, padded
    value_dim: Any
    scale: Any
    causal: Any
    operand: Any  # dtype of the product's operands
    acc: Any
    precision: Any


# ---- tiles --------------------------------------------------------------------------------------


@triton.jit
def _addresses(x, batch, head, first, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Addresses of a head's rows from `first` on, and which rows exist."""
    at = tl.cast(batch, tl.int64) * x.batch + tl.cast(head, tl.int64) * x.head
    at += tl.cast(first, tl.int64) * x.row
    row, d = tl.arange(0, ROWS)[:, None], tl.arange(0, DIM)[None, :]
    return x.data + at + row * x.row + d, (first + row < x.rows) & (d < x.dim)


@triton.jit
def _load(x, batch, head, first, ROWS: tl.constexpr, DIM: tl.constexpr):
    address, exists = _addresses(x, batch, head, first, ROWS, DIM)
    return tl.load(address, mask=exists, other=0.0)


@triton.jit
def _store(x, batch, head, first, tile):
    address, exists = _addresses(x, batch, head, first, tile.shape[0], tile.shape[1])
    tl.store(address, tile.to(x.data.dtype.element_ty), mask=exists)


@triton.jit
def _add_product(a, b, total, s):
    """Returns total + a @ b."""
    a, b = a.to(s.operand), b.to(s.operand)
    return tl.dot(a, b, total, input_precision=s.precision, out_dtype=s.acc)


@triton.jit
def _products(a, b, s):
    """Returns a @ b.T, the product of each row of one with each row of the other."""
    return _add_product(a, tl.trans(b), tl.zeros((a.shape[0], b.shape[0]), s.acc), s)


@triton.jit
def _load_map(x, batch, head, row, col, p):
    at = tl.cast(batch, tl.int64) * x.batch + tl.cast(head, tl.int64) * x.head
    exists = (row < p.queries) & (col < p.keys)
    return tl.load(x.data + at + row.to(tl.int64) * x.row + col * x.col, mask=exists, other=0)


@triton.jit
def _scores(products, row, col, batch, head, p, s, MASKED: tl.constexpr):
    """The scores of a tile, -inf where hidden. Scores of a row are compared before exp2's factor
    log2(e) is applied: scaled scores of 1e9 are rounded by whole powers, and the most negative
    number becomes infinite.

    `row` and `col`, the positions of queries and keys, broadcast to a tile or to its transpose.
    MASKED says that the diagonal or the end of the keys may run through it.
    """
    z = products * s.scale
    if p.bias is not None:
        z += _load_map(p.bias, batch, head, row, col, p).to(s.acc)
    if p.mask is not None:
        z = tl.where(_load_map(p.mask, batch, head, row, col, p) != 0, z, -float("inf"))
    if MASKED:
        visible = col < p.keys
        if s.causal:
            visible = visible & (col - row <= p.shift)
        z = tl.where(visible, z, -float("inf"))
    return z


@triton.jit
def _seen_keys(row0, p, s, MASKED: tl.constexpr):
    """The range of keys that all of a block's queries see, or (MASKED) only some of them."""
    by_all, by_last = p.keys, p.keys
    if s.causal:
        diagonal = row0 + p.shift
        by_all = tl.minimum(tl.maximum(diagonal + 1, 0), p.keys)
        by_last = tl.minimum(tl.maximum(diagonal + s.rows, 0), p.keys)
    whole = by_all // s.cols * s.cols
    return (whole, by_last) if MASKED else (0, whole)


@triton.jit
def _statistics(batch, head, row0, p, s):
    """Positions of a block's queries in the log-sum-exp, and which of them exist."""
    row = row0 + tl.arange(0, s.rows)
    return (tl.cast(batch, tl.int64) * p.heads + head) * p.queries + row, row < p.queries


# ---- forward ------------------------------------------------------------------------------------


@triton.jit
def _attend(acc, top, total, q_tile, k, v, row0, batch, head, p, s, MASKED: tl.constexpr):
    """Adds keys to the softmax and its product with the values: the largest score, the sum of
    weights, and the weighted sum so far."""
    row = row0 + tl.arange(0, s.rows)[:, None]
    start, stop = _seen_keys(row0, p, s, MASKED)
    for col0 in range(start, stop, s.cols):
        col = col0 + tl.arange(0, s.cols)[None, :]
        k_tile = _load(k, batch, head // p.group, col0, s.cols, s.dim)
        z = _scores(_products(q_tile, k_tile, s), row, col, batch, head, p, s, MASKED)
        new_top = tl.maximum(top, tl.max(z, 1))
        reference = tl.where(new_top == -float("inf"), 0.0, new_top)  # -inf - -inf would be NaN
        weights = tl.exp2((z - reference[:, None]) * LOG2E)
        faded = tl.exp2((top - reference) * LOG2E)
        total = total * faded + tl.sum(weights, 1)
        v_tile = _load(v, batch, head // p.group, col0, s.cols, s.value_dim)
        acc = _add_product(weights, v_tile, acc * faded[:, None], s)
        top = new_top
    return acc, top, total


@triton.jit
def _forward(q, k, v, out, lse, rest, p, s: tl.constexpr):
    """Computes out and lse of one block of queries, and the rounding error of lse unless `rest` is
    None. The last blocks, which see most keys, come first."""
    row0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * s.rows
    head, batch = tl.program_id(1), tl.program_id(2)
    q_tile = _load(q, batch, head, row0, s.rows, s.dim)
    acc = tl.zeros((s.rows, s.value_dim), s.acc)
    top = tl.full((s.rows,), -float("inf"), s.acc)
    total = tl.zeros((s.rows,), s.acc)
    acc, top, total = _attend(acc, top, total, q_tile, k, v, row0, batch, head, p, s, False)
    acc, top, total = _attend(acc, top, total, q_tile, k, v, row0, batch, head, p, s, True)
    dead = total == 0.0  # sees no key
    total = tl.where(dead, 1.0, total)
    at, exists = _statistics(batch, head, row0, p, s)
    log_total = tl.log(total)
    sum_log = top + log_total  # in dead rows, top is -inf
    tl.store(lse + at, sum_log, mask=exists)
    if rest is not None:
        left = tl.where(dead, 0.0, (top - sum_log) + log_total)
        tl.store(rest + at, left, mask=exists)
    _store(out, batch, head, row0, acc / total[:, None])


# ---- backward -----------------------------------------------------------------------------------


@triton.jit
def _load_lse(sums, at, exists):
    """Loads lse; queries that see no key or do not exist get inf, which gives weights of 0. The
    rest is in units of log2."""
    lse = tl.load(sums.lse + at, mask=exists, other=-float("inf"))
    rest = tl.load(sums.rest + at, mask=exists, other=0.0)
    return tl.where(lse == -float("inf"), float("inf"), lse), rest * LOG2E


@triton.jit
def _weights(z, lse, rest2):
    """Returns exp(z - lse - rest)."""
    return tl.exp2((z - lse) * LOG2E - rest2)


@triton.jit
def _add_dq(dq_sum, q_tile, g_tile, k, v, lse, rest2, delta, row0, batch, head, p, s,
            MASKED: tl.constexpr):  # fmt: skip
    row = row0 + tl.arange(0, s.rows)[:, None]
    start, stop = _seen_keys(row0, p, s, MASKED)
    for col0 in range(start, stop, s.cols):
        col = col0 + tl.arange(0, s.cols)[None, :]
        k_tile = _load(k, batch, head // p.group, col0, s.cols, s.dim)
        v_tile = _load(v, batch, head // p.group, col0, s.cols, s.value_dim)
        z = _scores(_products(q_tile, k_tile, s), row, col, batch, head, p, s, MASKED)
        weights = _weights(z, lse[:, None], rest2[:, None])
        dz = weights * (_products(g_tile, v_tile, s) - delta[:, None])
        dq_sum = _add_product(dz, k_tile, dq_sum, s)
    return dq_sum


@triton.jit
def _backward_queries(q, k, v, out, dout, sums, dq, p, s: tl.constexpr):
    """Computes dq of one block of queries, and their delta, to which it adds the sum of out *
    dout."""
    row0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * s.rows
    head, batch = tl.program_id(1), tl.program_id(2)
    q_tile = _load(q, batch, head, row0, s.rows, s.dim)
    g_tile = _load(dout, batch, head, row0, s.rows, s.value_dim)
    out_tile = _load(out, batch, head, row0, s.rows, s.value_dim)
    at, exists = _statistics(batch, head, row0, p, s)
    lse, rest2 = _load_lse(sums, at, exists)
    delta = tl.load(sums.delta + at, mask=exists, other=0.0)
    delta += tl.sum(out_tile.to(s.acc) * g_tile.to(s.acc), 1)
    tl.store(sums.delta + at, delta, mask=exists)
    total = tl.zeros((s.rows, s.dim), s.acc)
    total = _add_dq(total, q_tile, g_tile, k, v, lse, rest2, delta, row0, batch, head, p, s,
                    False)  # fmt: skip
    total = _add_dq(total, q_tile, g_tile, k, v, lse, rest2, delta, row0, batch, head, p, s,
                    True)  # fmt: skip
    _store(dq, batch, head, row0, total * s.scale)


@triton.jit
def _add_dk_dv(dk_sum, dv_sum, k_tile, v_tile, q, dout, sums, start, stop, col0, batch, head,
               p, s, MASKED: tl.constexpr):  # fmt: skip
    """Adds up dk and dv over queries from `start` to `stop` of one head. Tiles are (keys,
    queries)."""
    col = col0 + tl.arange(0, s.cols)[:, None]
    for row0 in range(start, stop, s.rows):
        row = row0 + tl.arange(0, s.rows)[None, :]
        q_tile = _load(q, batch, head, row0, s.rows, s.dim)
        g_tile = _load(dout, batch, head, row0, s.rows, s.value_dim)
        at, exists = _statistics(batch, head, row0, p, s)
        z = _scores(_products(k_tile, q_tile, s), row, col, batch, head, p, s, MASKED)
        lse, rest2 = _load_lse(sums, at, exists)
        weights = _weights(z, lse[None, :], rest2[None, :])
        dv_sum = _add_product(weights, g_tile, dv_sum, s)
        d = tl.load(sums.delta + at, mask=exists, other=0.0)[None, :]
        dk_sum = _add_product(weights * (_products(v_tile, g_tile, s) - d), q_tile, dk_sum, s)
    return dk_sum, dv_sum


@triton.jit
def _backward_keys(q, k, v, dout, sums, dk, dv, p, s: tl.constexpr):
    """Computes dk and dv of one block of keys."""
    col0, kv_head, batch = tl.program_id(0) * s.cols, tl.program_id(1), tl.program_id(2)
    k_tile = _load(k, batch, kv_head, col0, s.cols, s.dim)
    v_tile = _load(v, batch, kv_head, col0, s.cols, s.value_dim)
    dk_sum = tl.zeros((s.cols, s.dim), s.acc)
    dv_sum = tl.zeros((s.cols, s.value_dim), s.acc)
    begin, whole = 0, 0  # the first blocks of queries that see some, and all, of the keys
    if s.causal:
        diagonal = col0 - p.shift
        begin = tl.minimum(tl.maximum(diagonal, 0), p.queries) // s.rows * s.rows
        whole = tl.cdiv(tl.minimum(tl.maximum(diagonal + s.cols - 1, 0), p.queries), s.rows)
        whole *= s.rows
    for head in range(kv_head * p.group, (kv_head + 1) * p.group):
        dk_sum, dv_sum = _add_dk_dv(dk_sum, dv_sum, k_tile, v_tile, q, dout, sums, begin,
                                    whole, col0, batch, head, p, s, True)  # fmt: skip
        dk_sum, dv_sum = _add_dk_dv(dk_sum, dv_sum, k_tile, v_tile, q, dout, sums, whole,
                                    p.queries, col0, batch, head, p, s, False)  # fmt: skip
    _store(dk, batch, kv_head, col0, dk_sum * s.scale)
    _store(dv, batch, kv_head, col0, dv_sum)


# ---- launches -----------------------------------------------------------------------------------


class Tile(NamedTuple):
    rows: int
    cols: int
    warps: int
    stages: int


# Tiles for 16-bit operands, by the larger head dim rounded up to a power of two.
FORWARD = {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 2), 256: Tile(64, 32, 4, 2)}
QUERIES = {64: Tile(128, 64, 8, 2), 128: Tile(64, 64, 4, 2), 256: Tile(32, 32, 4, 1)}
KEYS = {64: Tile(64, 64, 4, 2), 128: Tile(32, 128, 8, 2), 256: Tile(32, 32, 4, 1)}
# Tiles for calls with a bias or mask, which take registers too.
FEATURED = {64: Tile(64, 32, 4, 2), 128: Tile(64, 32, 4, 1), 256: Tile(32, 32, 4, 1)}
# Tiles for float32, which has no tensor cores: small ones stay in registers.
WIDE = {64: Tile(32, 32, 8, 1), 128: Tile(32, 32, 8, 1), 256: Tile(16, 16, 4, 1)}
_LEAST_DIM = 16  # least dimension of a product
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.float32 if _INTERPRETED else tl.bfloat16,  # its matmul knows no bfloat16
}


def _heads(x: Tensor) -> Heads:
    return Heads(x, x.stride(0), x.stride(1), x.stride(2), x.shape[1], x.shape[3])


def _readable(x: Tensor) -> Heads:
    x = x.resolve_neg()  # a kernel only sees the sign in memory
    return _heads(x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous())


def _map(x: Tensor | None, shape: tuple[int, ...]) -> ScoreMap | None:
    if x is None:
        return None
    x = (x.view(torch.uint8) if x.dtype is torch.bool else x.resolve_neg()).expand(shape)
    return ScoreMap(x, *x.stride())


def _launch(
    kernel: Any, table: dict[int, Tile], inputs: Inputs, options: Options, *arguments: Any
) -> None:
    """Launches a program for each block of a head's keys if the kernel owns keys, else of its
    queries."""
    q, bias, mask = inputs.q, inputs.bias, inputs.mask
    (batch, queries, heads, dim), (_, keys, kv_heads, value_dim) = q.shape, inputs.v.shape
    score_shape = (batch, heads, queries, keys)
    shift = 0 if options.top_left else keys - queries
    problem = Problem(_map(bias, score_shape), _map(mask, score_shape), queries, keys, heads,
                      heads // kv_heads, shift)  # fmt: skip
    dims = [max(triton.next_power_of_2(d), _LEAST_DIM) for d in (dim, value_dim)]
    table = table if bias is None and mask is None else FEATURED
    tile = (WIDE if q.dtype.itemsize > 2 else table)[max(*dims, 64)]
    tf32 = q.dtype is torch.float32 and q.is_cuda and torch.backends.cuda.matmul.allow_tf32
    statics = (
        tile.rows, tile.cols, *dims, options.scale, options.window_right == 0, _DTYPES[q.dtype],
        tl.float64 if q.dtype is torch.float64 else tl.float32, "tf32" if tf32 else "ieee",
    )  # fmt: skip
    of_keys = kernel is _backward_keys
    blocks = triton.cdiv(keys, tile.cols) if of_keys else triton.cdiv(queries, tile.rows)
    with torch.cuda.device_of(q):
        kernel[blocks, kv_heads if of_keys else heads, batch](
            *arguments, problem, Statics(*map(tl.constexpr, statics)), num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip


def _run(
    inputs: Inputs, options: Options, saves_rest: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the output, the log-sum-exp and its rounding error."""
    refuse_in_triton(inputs, options, _INTERPRETED)
    q, k, v = inputs[:3]
    out = empty_heads(q, *q.shape[:-1], v.shape[-1])
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=accumulate_dtype(q))
    rest = torch.empty_like(lse) if saves_rest else None
    if q.numel() and k.numel():
        heads = *map(_readable, (q, k, v)), _heads(out)
        _launch(_forward, FORWARD, inputs, options, *heads, lse, rest)
    else:
        for result, value in zip((out, lse), _formula.forward(*inputs, *options), strict=True):
            result.copy_(value)
        rest = torch.zeros_like(lse)
    return out, lse, rest


def attention_inference(*arguments: Any) -> tuple[Tensor, Tensor]:
    inputs, options, _ = _formula.split(arguments)
    return _run(inputs, options, False)[:2]


def attention_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the forward pass of a call that is differentiated."""
    inputs, options, _ = _formula.split(arguments)
    refuse_learned_bias(inputs.bias)
    out, lse, rest = _run(inputs, options, True)
    assert rest is not None
    return out, lse, rest


def attention_backward(
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    lse_rest: Tensor,
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs, options, _ = _formula.split(arguments)
    if not (inputs.q.numel() and inputs.k.numel()):
        return _formula.backward(dout, dlse, out, lse, lse_rest, *arguments)
    q, k, v, o, g = map(_readable, (*inputs[:3], out, dout))
    delta = torch.zeros_like(lse) if dlse is None else (-dlse).contiguous()
    sums = RowSums(lse.contiguous(), lse_rest.contiguous(), delta)
    dq, dk, dv = (empty_heads(x, *x.shape) for x in inputs[:3])
    _launch(_backward_queries, QUERIES, inputs, options, q, k, v, o, g, sums, _heads(dq))
    _launch(_backward_keys, KEYS, inputs, options, q, k, v, g, sums, _heads(dk), _heads(dv))
    return dq, dk, dv, lse.new_empty(0), lse.new_empty(0)
