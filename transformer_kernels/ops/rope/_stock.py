# SPDX-License-Identifier: MIT
"""The rotation as Hugging Face's models write it, in the tensors' dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _torch
from ._formula import Angles, has_axes, positions


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rotate_neighbours(x: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([-b, a], -1).flatten(-2)


def doubled(table: Tensor, interleaved: bool) -> Tensor:
    """Expands (..., R / 2) to (..., 1, R), with each number twice, for all heads."""
    both = table.repeat_interleave(2, -1) if interleaved else torch.cat([table, table], -1)
    return both.unsqueeze(-2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotates all numbers of a head by doubled tables."""
    rotate = rotate_neighbours if interleaved else rotate_half
    return x * cos + rotate(x) * sin


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotates the first R numbers of a head by cosines and sines (..., T, R / 2)."""
    rotary_dim = 2 * cos.shape[-1]
    cos, sin = (doubled(t, interleaved).to(x.dtype) for t in (cos, sin))
    first, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    return torch.cat([rotated(first, cos, sin, interleaved), rest], -1)


def _rows(table: Tensor, at: Tensor, given: Angles, q: Tensor) -> Tensor:
    rows = table[at.clamp(min=0)]
    if not has_axes(given.position_ids, q):
        return rows
    first, second = given.section_time, given.section_time + given.section_height
    bounds = (0, first, second, table.shape[1])
    return torch.cat([rows[i][..., bounds[i] : bounds[i + 1]] for i in range(3)], -1)


def rope(q: Tensor, k: Tensor | None, *angles: object) -> tuple[Tensor, Tensor]:
    """Rotates q and k; without ``k``, its result has no elements."""
    given = Angles(*angles)  # type: ignore[arg-type]
    at, held = positions(q, given, q.device)
    at = at if held is None else torch.where(held, at, 0)
    cos, sin = (_rows(table, at, given, q) for table in (given.cos, given.sin))

    def turn(x: Tensor) -> Tensor:
        y = turned(x, cos, sin, given.interleaved)
        return y if held is None else torch.where(held[:, None, None], y, x)

    return turn(q), q.new_empty(0) if k is None else turn(k)


def qk_norm(
    q: Tensor, k: Tensor | None, q_weight: Tensor | None, k_weight: Tensor | None,
    cos: Tensor | None, sin: Tensor | None, *rest: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    *positions, eps = rest

    def normed(x: Tensor, weight: Tensor | None) -> Tensor:
        wide = x if weight is None else x.to(weight.dtype)
        return _torch.rms_norm(wide, x.shape[-1:], weight, eps).to(x.dtype)

    q, k = normed(q, q_weight), None if k is None else normed(k, k_weight)
    if cos is None:
        return q, q.new_empty(0) if k is None else k
    return rope(q, k, cos, sin, *positions)
