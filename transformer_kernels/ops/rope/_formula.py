# SPDX-License-Identifier: MIT
"""The rotation in PyTorch operations; both passes have the signatures of the raw ops."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._dtype import accumulate_dtype
from .._heads import in_the_order_of


class Angles(NamedTuple):
    """The arguments that determine the angle of each token, in schema order."""

    cos: Tensor
    sin: Tensor
    position_ids: Tensor | None
    offsets: Tensor | None
    cu_seqlens: Tensor | None
    offset: int
    section_time: int
    section_height: int
    interleaved: bool


def has_axes(position_ids: Tensor | None, q: Tensor) -> bool:
    return position_ids is not None and position_ids.dim() >= q.dim() - 1


def positions(q: Tensor, given: Angles, device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Positions (B, T) or (3, B, T), without B if ``q`` has none; and with sequences, which rows
    belong to one. They are on the device of the position tensors."""
    tokens = q.shape[:-2]
    if given.position_ids is not None:
        shape = (3, *tokens) if has_axes(given.position_ids, q) else tokens
        return given.position_ids.long().expand(shape), None
    at = torch.arange(tokens[-1], device=device)
    offsets = None if given.offsets is None else given.offsets.long()
    held = None
    if given.cu_seqlens is not None:
        starts = given.cu_seqlens.long()
        sequence = torch.searchsorted(starts[1:].contiguous(), at, right=True)
        held = sequence < starts.numel() - 1
        at = at - starts[sequence]
        if offsets is not None:
            offsets = torch.cat([offsets, offsets.new_zeros(1)])[sequence]
    elif offsets is not None and q.dim() == 4:
        offsets = offsets.unsqueeze(-1)
    at = at + given.offset
    return (at if offsets is None else at + offsets).expand(tokens), held


def _rows(table: Tensor, at: Tensor) -> Tensor:
    """The table's rows at these positions; NaN where there is none."""
    last = table.shape[0] - 1
    if last < 0:
        return table.new_full((*at.shape, table.shape[1]), torch.nan)
    inside = (at >= 0) & (at <= last)
    return torch.where(inside.unsqueeze(-1), table[at.clamp(0, last)], torch.nan)


def _angles(q: Tensor, given: Angles) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cosines and sines (B, T, 1, R / 2) in the arithmetic's dtype, and which rows are rotated."""
    at, held = positions(q, given, q.device)
    if held is not None:
        at = torch.where(held, at, 0)
    tables = [_rows(t.to(accumulate_dtype(q)), at) for t in (given.cos, given.sin)]
    if has_axes(given.position_ids, q):
        first, second = given.section_time, given.section_time + given.section_height
        bounds = (0, first, second, given.cos.shape[1])
        tables = [
            torch.cat([t[i][..., bounds[i] : bounds[i + 1]] for i in range(3)], -1) for t in tables
        ]
    cos, sin = (t.unsqueeze(-2) for t in tables)
    return cos, sin, None if held is None else held[:, None, None]


class _Turn(NamedTuple):
    """The rotation of a call's tokens, in the arithmetic's dtype."""

    cos: Tensor
    sin: Tensor
    held: Tensor | None  # rows to rotate; None for all
    interleaved: bool

    def __call__(self, wide: Tensor) -> Tensor:
        half = self.cos.shape[-1]
        turned, rest = wide[..., : 2 * half], wide[..., 2 * half :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned[..., :half], turned[..., half:]
        pair = (a * self.cos - b * self.sin, b * self.cos + a * self.sin)
        if self.interleaved:
            turned = torch.stack(pair, -1).reshape(turned.shape)
        else:
            turned = torch.cat(pair, -1)
        y = torch.cat([turned, rest], -1)
        return y if self.held is None else torch.where(self.held, y, wide)


def _turn_of(q: Tensor, given: Angles) -> _Turn:
    return _Turn(*_angles(q, given), given.interleaved)


def _rotate(x: Tensor, turn: _Turn) -> Tensor:
    return in_the_order_of(turn(x.to(turn.cos.dtype)).to(x.dtype), x)


def forward(q: Tensor, k: Tensor | None, *angles: object) -> tuple[Tensor, Tensor]:
    """Rotates q and k; without ``k``, its result has no elements."""
    given = Angles(*angles)  # type: ignore[arg-type]
    turn = _turn_of(q, given)
    return _rotate(q, turn), q.new_empty(0) if k is None else _rotate(k, turn)


def is_absent(k_rotated: Tensor) -> bool:
    """Whether the result stands for a ``k`` that was not given."""
    return k_rotated.dim() == 1


def backward(dq_rotated: Tensor, dk_rotated: Tensor, *angles: object) -> tuple[Tensor, Tensor]:
    """Rotates by the opposite angles."""
    given = Angles(*angles)  # type: ignore[arg-type]
    opposite = given._replace(sin=-given.sin)
    dk = None if is_absent(dk_rotated) else dk_rotated
    return forward(dq_rotated, dk, *opposite)


# ---- behind a norm ------------------------------------------------------------------------------


def _normed(x: Tensor, weight: Tensor | None, eps: float, turn: _Turn | None) -> Tensor:
    wide = x.to(accumulate_dtype(x))
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.to(wide.dtype)
    return in_the_order_of((y if turn is None else turn(y)).to(x.dtype), x)


def norm_forward(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    position_ids: Tensor | None,
    offsets: Tensor | None,
    cu_seqlens: Tensor | None,
    offset: int,
    section_time: int,
    section_height: int,
    interleaved: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Normalises and rotates q and k. Without ``k``, its result has no elements, and autograd sees
    it as made of ``q``."""
    turn = None
    if cos is not None and sin is not None:
        given = Angles(
            cos, sin, position_ids, offsets, cu_seqlens, offset, section_time, section_height,
            interleaved,
        )  # fmt: skip
        turn = _turn_of(q, given)
    q_normed = _normed(q, q_weight, eps, turn)
    if k is None:
        return q_normed, q_normed.flatten()[:0].clone()
    return q_normed, _normed(k, k_weight, eps, turn)
