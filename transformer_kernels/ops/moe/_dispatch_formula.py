# SPDX-License-Identifier: MIT
"""The dispatch in PyTorch operations, differentiable any number of times."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtype import accumulate_dtype


def moe_sort(indices: Tensor, num_experts: int, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    flat = indices.flatten().long()
    is_expert = (flat >= 0) & (flat < num_experts)
    key = torch.where(is_expert, flat, num_experts)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=flat.device)
    counts = counts.index_add(0, key, torch.ones_like(key))
    order = torch.sort(key, stable=True).indices
    place = torch.empty_like(order).index_copy(0, order, torch.arange(len(key), device=key.device))
    rank = place - (counts.cumsum(0) - counts)[key]
    most = capacity if capacity > 0 else len(key)
    is_kept = is_expert & (rank < most)
    kept = counts.clamp(max=most)
    kept[num_experts] = 0
    starts = kept.cumsum(0) - kept
    behind = kept.sum() + (counts - kept).cumsum(0) - (counts - kept)
    place = torch.where(is_kept, starts[key] + rank, behind[key] + rank - kept[key])
    token = torch.arange(len(key), device=key.device) // max(indices.shape[1], 1)
    tokens = torch.empty_like(place).index_copy(0, place, torch.where(is_kept, token, -1))
    places = torch.where(is_kept, place, -1 - place).reshape(indices.shape)
    return starts.to(torch.int32), tokens.to(torch.int32), places.to(torch.int32)


def _is_kept(places: Tensor) -> Tensor:
    return (places >= 0) & (places < places.numel())


def moe_permute(x: Tensor, places: Tensor) -> Tensor:
    flat = places.flatten().long()
    rows = x.repeat_interleave(places.shape[1], 0)
    rows = torch.where(_is_kept(flat).unsqueeze(1), rows, 0)
    return torch.zeros_like(rows).index_copy(0, torch.where(flat < 0, -1 - flat, flat), rows)


def moe_permute_gradient(dy: Tensor, places: Tensor) -> Tensor:
    return moe_unpermute(dy, places, None)


def _rows_of(x: Tensor, places: Tensor) -> Tensor:
    """The row of each assignment (T, K, C), zeros for dropped ones."""
    kept = _is_kept(places)
    rows = x.to(accumulate_dtype(x))[torch.where(kept, places, 0).long()]
    return torch.where(kept.unsqueeze(-1), rows, 0)


def moe_unpermute(x: Tensor, places: Tensor, weights: Tensor | None) -> Tensor:
    rows = _rows_of(x, places)
    if weights is not None:
        rows = rows * weights.to(rows.dtype).unsqueeze(-1)
    return rows.sum(1).to(x.dtype)


def moe_unpermute_gradient(
    dy: Tensor, x: Tensor, places: Tensor, weights: Tensor | None, need_dx: bool,
    need_dweights: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    wide = dy.to(accumulate_dtype(dy)).unsqueeze(1)
    dx = dweights = dy.new_empty(0)
    if need_dx:
        factor = wide.new_ones(places.shape) if weights is None else weights.to(wide.dtype)
        factor = torch.where(_is_kept(places), factor, 0).unsqueeze(-1)
        flat = places.flatten().long()
        place = torch.where(flat < 0, -1 - flat, flat)
        rows = (wide * factor).reshape(places.numel(), dy.shape[1])
        dx = torch.zeros_like(rows).index_copy(0, place, rows).to(x.dtype)
    if need_dweights and weights is not None:
        dweights = (wide * _rows_of(x, places)).sum(-1).to(weights.dtype)
    return dx, dweights
