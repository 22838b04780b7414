# SPDX-License-Identifier: MIT
"""qk_norm in Triton, with the signatures of the raw ops.

A program owns tokens at a fixed step. It processes a block of a token's heads at a time, and holds
the rotated numbers as pairs, and the others. Without tables all numbers are others.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._heads import empty_heads
from .._triton_rows import accumulate_type, vector
from ._formula import Angles, positions
from .rope_triton import PASSES

_HEADS = 16
_MOST_PROGRAMS = 1024


@triton.jit
def _turn(a, b, c, s, row, PASSES: tl.constexpr):
    passes = (row == PASSES)[None, :]
    return tl.where(passes, a, a * c - b * s), tl.where(passes, b, b * c + a * s)


@triton.jit
def _angle(cos, cos_row, sin, sin_row, at, at_axis, token, f, table_rows, half, first_end,
           second_end, AXES: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    row = tl.load(at + token + 0 * f)
    if AXES:
        axis = (f >= first_end).to(tl.int64) + (f >= second_end).to(tl.int64)
        row = tl.load(at + token + axis * at_axis)
    there = (f < half) & (row >= 0) & (row < table_rows)
    c = tl.load(cos + row * cos_row + f, mask=there, other=float("nan")).to(ACC)[None, :]
    s = tl.load(sin + row * sin_row + f, mask=there, other=float("nan")).to(ACC)[None, :]
    return c, s, row


@triton.jit
def _places(f, r, half, INTERLEAVED: tl.constexpr):
    """Columns of the pairs, and of the other numbers."""
    if INTERLEAVED:
        return (2 * f)[None, :], (2 * f + 1)[None, :], (2 * half + r)[None, :]
    return f[None, :], (f + half)[None, :], (2 * half + r)[None, :]


@triton.jit
def _weights(weight, first, second, rest, pairs, others, HAS: tl.constexpr, ACC: tl.constexpr):
    if HAS:
        return (tl.load(weight + first, mask=pairs, other=0.0).to(ACC),
                tl.load(weight + second, mask=pairs, other=0.0).to(ACC),
                tl.load(weight + rest, mask=others, other=0.0).to(ACC))  # fmt: skip
    one = first.to(ACC) * 0 + 1
    return one, one, rest.to(ACC) * 0 + 1


@triton.jit
def _load(row, first, second, rest, pairs, others, ACC: tl.constexpr):
    return (tl.load(row + first, mask=pairs, other=0.0).to(ACC),
            tl.load(row + second, mask=pairs, other=0.0).to(ACC),
            tl.load(row + rest, mask=others, other=0.0).to(ACC))  # fmt: skip


@triton.jit
def _forward(
    x, x_batch, x_time, x_head, y, y_batch, y_time, y_head, weight, cos, cos_row, sin, sin_row, at,
    at_axis, tokens, time, heads, table_rows, half, dim, first_end, second_end,
    EPS: tl.constexpr, HAS_WEIGHT: tl.constexpr, INTERLEAVED: tl.constexpr, AXES: tl.constexpr,
    ACC: tl.constexpr, PASSES: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    f, r = tl.arange(0, PAIRS), tl.arange(0, REST)
    first, second, rest = _places(f, r, half, INTERLEAVED)
    in_pairs, in_rest = (f < half)[None, :], rest < dim
    w1, w2, w3 = _weights(weight, first, second, rest, in_pairs, in_rest, HAS_WEIGHT, ACC)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        c, s, row = _angle(cos, cos_row, sin, sin_row, at, at_axis, token, f, table_rows, half,
                           first_end, second_end, AXES, ACC)  # fmt: skip
        batch, t = (token // time).to(tl.int64), (token % time).to(tl.int64)
        for start in range(0, heads, HEADS):
            head = (start + tl.arange(0, HEADS)).to(tl.int64)[:, None]
            pairs, others = (head < heads) & in_pairs, (head < heads) & in_rest
            x_row = x + batch * x_batch + t * x_time + head * x_head
            y_row = y + batch * y_batch + t * y_time + head * y_head
            a, b, d = _load(x_row, first, second, rest, pairs, others, ACC)
            squares = tl.sum(a * a + b * b, 1) + tl.sum(d * d, 1)
            rstd = (1.0 / tl.sqrt(squares / dim + tl.full((1,), EPS, ACC)))[:, None]
            a, b = _turn(a * rstd * w1, b * rstd * w2, c, s, row, PASSES)
            tl.store(y_row + first, a, mask=pairs)
            tl.store(y_row + second, b, mask=pairs)
            tl.store(y_row + rest, d * rstd * w3, mask=others)


@triton.jit
def _backward(
    dy, dy_batch, dy_time, dy_head, x, x_batch, x_time, x_head, dx, dx_batch, dx_time, dx_head,
    weight, partial, cos, cos_row, sin, sin_row, at, at_axis, tokens, time, heads, table_rows, half,
    dim, first_end, second_end,
    EPS: tl.constexpr, HAS_WEIGHT: tl.constexpr, INTERLEAVED: tl.constexpr, AXES: tl.constexpr,
    ACC: tl.constexpr, PASSES: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    f, r = tl.arange(0, PAIRS), tl.arange(0, REST)
    first, second, rest = _places(f, r, half, INTERLEAVED)
    in_pairs, in_rest = (f < half)[None, :], rest < dim
    w1, w2, w3 = _weights(weight, first, second, rest, in_pairs, in_rest, HAS_WEIGHT, ACC)
    sum1, sum2 = tl.zeros((1, PAIRS), ACC), tl.zeros((1, PAIRS), ACC)
    sum3 = tl.zeros((1, REST), ACC)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        c, s, row = _angle(cos, cos_row, sin, sin_row, at, at_axis, token, f, table_rows, half,
                           first_end, second_end, AXES, ACC)  # fmt: skip
        batch, t = (token // time).to(tl.int64), (token % time).to(tl.int64)
        for start in range(0, heads, HEADS):
            head = (start + tl.arange(0, HEADS)).to(tl.int64)[:, None]
            pairs, others = (head < heads) & in_pairs, (head < heads) & in_rest
            x_row = x + batch * x_batch + t * x_time + head * x_head
            dy_row = dy + batch * dy_batch + t * dy_time + head * dy_head
            dx_row = dx + batch * dx_batch + t * dx_time + head * dx_head
            a, b, d = _load(x_row, first, second, rest, pairs, others, ACC)
            ga, gb, gd = _load(dy_row, first, second, rest, pairs, others, ACC)
            ga, gb = _turn(ga, gb, c, -s, row, PASSES)
            squares = tl.sum(a * a + b * b, 1) + tl.sum(d * d, 1)
            rstd = (1.0 / tl.sqrt(squares / dim + tl.full((1,), EPS, ACC)))[:, None]
            products = tl.where(pairs, ga * w1 * a + gb * w2 * b, 0.0)
            product = (tl.sum(products, 1) + tl.sum(gd * w3 * d, 1))[:, None]
            of_x = product * rstd * rstd * rstd / dim
            ga, gb, gd = ga * rstd, gb * rstd, gd * rstd
            sum1 += tl.sum(tl.where(pairs, ga * a, 0.0), 0)[None, :]
            sum2 += tl.sum(tl.where(pairs, gb * b, 0.0), 0)[None, :]
            sum3 += tl.sum(gd * d, 0)[None, :]
            tl.store(dx_row + first, ga * w1 - a * of_x, mask=pairs)
            tl.store(dx_row + second, gb * w2 - b * of_x, mask=pairs)
            tl.store(dx_row + rest, gd * w3 - d * of_x, mask=others)
    sums = partial + tl.program_id(0).to(tl.int64) * dim
    tl.store(sums + first, sum1, mask=in_pairs)
    tl.store(sums + second, sum2, mask=in_pairs)
    tl.store(sums + rest, sum3, mask=in_rest)


# ---- launches -----------------------------------------------------------------------------------


def _with_batch(x: Tensor) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x if x.dim() == 4 else x.unsqueeze(0)


class _Call:
    """The arguments that the launches for q and for k share."""

    def __init__(self, q: Tensor, angles: Sequence[Any], eps: float) -> None:
        given = Angles(*angles)
        batch, self.time, _, self.dim = _with_batch(q).shape
        self.tokens = batch * self.time
        self.programs = min(self.tokens, _MOST_PROGRAMS)
        if angles[0] is None:  # no tables
            at = torch.zeros(1, dtype=torch.int64, device=q.device).expand(q.shape[:-2])
            tables: tuple[Any, ...] = (q, 0, q, 0)
            half, rows, axes = 0, 0, False
        else:
            at, held = positions(q, given, q.device)
            at = at if held is None else torch.where(held, at, PASSES.value)
            cos, sin = (t if t.stride(1) == 1 else t.contiguous() for t in (given.cos, given.sin))
            tables = (cos, cos.stride(0), sin, sin.stride(0))
            rows, half = cos.shape
            axes = at.dim() == q.dim() - 1
        ends = (given.section_time, given.section_time + given.section_height)
        self.angles = (*tables, at.contiguous(), self.tokens)
        self.sizes = (rows, half, self.dim, *ends)
        self.constants = {
            "EPS": eps, "INTERLEAVED": given.interleaved, "AXES": axes,
            "ACC": accumulate_type(q), "PASSES": PASSES, "HEADS": _HEADS,
            "PAIRS": triton.next_power_of_2(max(half, 1)),
            "REST": triton.next_power_of_2(max(self.dim - 2 * half, 1)),
        }  # fmt: skip

    def run(self, kernel: Any, tensors: tuple[Tensor, ...], weight: Tensor | None,
            more: tuple[Tensor, ...] = ()) -> None:  # fmt: skip
        wide = [_with_batch(x) for x in tensors]
        if wide[0].numel() == 0:
            return
        heads = wide[0].shape[2]
        operands = [part for x in wide for part in (x, *x.stride()[:3])]
        with torch.cuda.device_of(wide[0]):
            kernel[(self.programs,)](
                *operands, vector(weight, wide[0]), *more, *self.angles, self.tokens,
                self.time, heads, *self.sizes, HAS_WEIGHT=weight is not None, **self.constants,
            )  # fmt: skip


def qk_norm_forward(
    q: Tensor, k: Tensor | None, q_weight: Tensor | None, k_weight: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    *angles, eps = rest
    call = _Call(q, angles, eps)

    def one(x: Tensor, weight: Tensor | None) -> Tensor:
        y = empty_heads(x, *x.shape)
        call.run(_forward, (x, y), weight)
        return y

    return one(q, q_weight), q.new_empty(0) if k is None else one(k, k_weight)


def qk_norm_backward(
    dq_normed: Tensor, dk_normed: Tensor, q: Tensor, k: Tensor | None, q_weight: Tensor | None,
    k_weight: Tensor | None, *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    *angles, eps, need_dq_weight, need_dk_weight = rest
    call = _Call(q, angles, eps)

    def one(dy: Tensor, x: Tensor, weight: Tensor | None, need: bool) -> tuple[Tensor, Tensor]:
        dx = empty_heads(x, *x.shape)
        wide = torch.promote_types(x.dtype, torch.float32)
        partial = torch.zeros(max(call.programs, 1), call.dim, dtype=wide, device=x.device)
        call.run(_backward, (dy, x, dx), weight, (partial,))
        if weight is None or not need:
            return dx, x.new_empty(0)
        return dx, partial.sum(0).to(weight.dtype)

    dq, dq_weight = one(dq_normed, q, q_weight, need_dq_weight)
    if k is None:
        return dq, q.new_empty(0), dq_weight, q.new_empty(0)
    dk, dk_weight = one(dk_normed, k, k_weight, need_dk_weight)
    return dq, dk, dq_weight, dk_weight
