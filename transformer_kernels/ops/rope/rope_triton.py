# SPDX-License-Identifier: MIT
"""The rotation in Triton, with the signatures of the raw ops.

A program owns a block of heads of one token. PyTorch's operations compute positions first.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._heads import empty_heads
from .._triton_rows import accumulate_type
from ._formula import Angles, has_axes, is_absent, positions

_HEADS = 16
PASSES: tl.constexpr = tl.constexpr(-(2**62))  # the position of a token that is not rotated


@triton.jit
def _rotate(
    x, x_batch, x_time, x_head, y, y_batch, y_time, y_head, cos, cos_row, sin, sin_row, at,
    at_axis, time, heads, table_rows, half, dim, first_end, second_end,
    SIGN: tl.constexpr, INTERLEAVED: tl.constexpr, AXES: tl.constexpr, ACC: tl.constexpr,
    PASSES: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    batch, t = token // time, token % time
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    f = tl.arange(0, BLOCK)
    row = tl.load(at + token + 0 * f)
    if AXES:
        axis = (f >= first_end).to(tl.int64) + (f >= second_end).to(tl.int64)
        row = tl.load(at + token + axis * at_axis)
    there = (f < half) & (row >= 0) & (row < table_rows)
    c = tl.load(cos + row * cos_row + f, mask=there, other=float("nan")).to(ACC)[None, :]
    s = tl.load(sin + row * sin_row + f, mask=there, other=float("nan")).to(ACC)[None, :] * SIGN
    inside = (head < heads) & (f < half)[None, :]
    x_row = x + batch * x_batch + t * x_time + head * x_head
    y_row = y + batch * y_batch + t * y_time + head * y_head
    if INTERLEAVED:
        first, second = (2 * f)[None, :], (2 * f + 1)[None, :]
    else:
        first, second = f[None, :], (f + half)[None, :]
    a = tl.load(x_row + first, mask=inside, other=0.0)
    b = tl.load(x_row + second, mask=inside, other=0.0)
    wide_a, wide_b = a.to(ACC), b.to(ACC)
    passes = (row == PASSES)[None, :]
    turned_a = (wide_a * c - wide_b * s).to(a.dtype)
    turned_b = (wide_b * c + wide_a * s).to(a.dtype)
    tl.store(y_row + first, tl.where(passes, a, turned_a), mask=inside)
    tl.store(y_row + second, tl.where(passes, b, turned_b), mask=inside)
    for start in range(2 * half, dim, BLOCK):
        col = (start + f)[None, :]
        here = (head < heads) & (col < dim)
        tl.store(y_row + col, tl.load(x_row + col, mask=here), mask=here)


def _one(x: Tensor, given: Angles, at: Tensor, sign: float) -> Tensor:
    y = empty_heads(x, *x.shape)
    if x.numel() == 0:
        return y
    if x.stride(-1) != 1:
        x = x.contiguous()
    wide, out = (t if t.dim() == 4 else t.unsqueeze(0) for t in (x, y))
    batch, time, heads, dim = wide.shape
    cos, sin = (t if t.stride(1) == 1 else t.contiguous() for t in (given.cos, given.sin))
    half = cos.shape[1]
    axes = at.dim() == x.dim() - 1
    with torch.cuda.device_of(x):
        _rotate[(batch * time, triton.cdiv(heads, _HEADS))](
            wide, *wide.stride()[:3], out, *out.stride()[:3], cos, cos.stride(0), sin,
            sin.stride(0), at, batch * time, time, heads, cos.shape[0], half, dim,
            given.section_time, given.section_time + given.section_height,
            SIGN=sign, INTERLEAVED=given.interleaved, AXES=axes, ACC=accumulate_type(x),
            PASSES=PASSES, HEADS=_HEADS, BLOCK=triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip
    return y


def _run(q: Tensor, k: Tensor | None, given: Angles, sign: float) -> tuple[Tensor, Tensor]:
    at, held = positions(q, given, q.device)
    if held is not None:
        at = torch.where(held, at, PASSES.value)
    assert (at.dim() == q.dim() - 1) == has_axes(given.position_ids, q)
    at = at.contiguous()
    q_rotated = _one(q, given, at, sign)
    return q_rotated, q.new_empty(0) if k is None else _one(k, given, at, sign)


def rope_forward(q: Tensor, k: Tensor | None, *angles: object) -> tuple[Tensor, Tensor]:
    return _run(q, k, Angles(*angles), 1.0)  # type: ignore[arg-type]


def rope_backward(dq_rotated: Tensor, dk_rotated: Tensor, *angles: object) -> tuple[Tensor, Tensor]:
    dk = None if is_absent(dk_rotated) else dk_rotated
    return _run(dq_rotated, dk, Angles(*angles), -1.0)  # type: ignore[arg-type]
