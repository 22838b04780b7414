# SPDX-License-Identifier: MIT
"""Gives assignments that an expert at its capacity drops to experts that have room."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import ArgumentValueError, as_integer, check_indices, check_tensors
from .._public import overridable
from .dispatch import capacity_of, moe_dispatch

_OP = "moe_reroute"


def _ranks(key: Tensor, keys: int) -> Tensor:
    """How many elements before each have the same key."""
    order = torch.sort(key, stable=True).indices
    counts = torch.zeros(keys, dtype=torch.int64, device=key.device)
    counts = counts.index_add(0, key, torch.ones_like(key))
    starts = counts.cumsum(0) - counts
    sorted_ranks = torch.arange(len(key), device=key.device) - starts[key[order]]
    return torch.empty_like(order).index_copy(0, order, sorted_ranks)


@overridable
def moe_reroute(candidates: Tensor, top_k: int, num_experts: int, capacity_factor: float) -> Tensor:
    """Chooses ``top_k`` of each token's candidates, so that fewer assignments are dropped.

    The first ``top_k`` candidates are taken. Where an expert is full, as :func:`moe_dispatch` with
    this ``capacity_factor`` fills it, the token takes a further candidate that has room, the
    earlier tokens first, until the candidates are used up. What finds none stays where it is, and
    :func:`moe_dispatch` drops it.

    Args:
        candidates: (..., C), int32: different experts of each token, the best first, as
            :func:`moe_router` with ``top_k=C`` returns them.
        top_k: K, at most C.
        num_experts: E.
        capacity_factor: as of :func:`moe_dispatch`, of T * K assignments.

    Returns:
        (..., K), int64: which candidate each assignment takes.

    Raises:
        ValueError: a number is none of these.

    >>> candidates = torch.tensor([[0, 1, 2], [0, 2, 1], [0, 1, 2]], dtype=torch.int32)
    >>> slots = tfk.functional.moe_reroute(candidates, 1, 3, capacity_factor=1.0)
    >>> candidates.gather(-1, slots).flatten().tolist()
    [0, 2, 1]
    """
    check_tensors(_OP, {"candidates": candidates})
    check_indices(_OP, "candidates", candidates)
    count = candidates.shape[-1] if candidates.dim() else 0
    k = as_integer(_OP, "top_k", top_k)
    if not 1 <= k <= count:
        raise ArgumentValueError(f"{_OP}: top_k is {k}, expected 1 to {count} (the candidates)")
    experts = as_integer(_OP, "num_experts", num_experts)
    rows = candidates.reshape(-1, count)
    capacity = capacity_of(_OP, capacity_factor, len(rows) * k, max(experts, 1))
    first = rows[:, :k]
    dispatch = moe_dispatch(first, experts, capacity_factor=capacity_factor)
    free = dispatch.places < 0
    room = capacity - dispatch.counts().long()
    slots = torch.arange(k, device=rows.device).expand(len(rows), k).clone()
    for column in range(k, count):
        wants = free.any(1)
        key = torch.where(wants, rows[:, column].long(), experts)
        takes = wants & (_ranks(key, experts + 1) < torch.cat([room, room.new_zeros(1)])[key])
        room = room.index_add(0, key.clamp(max=experts - 1), -takes.long())
        slot = (free.int().argmax(1, keepdim=True) == slots.new_tensor(range(k))) & takes[:, None]
        slots = torch.where(slot, column, slots)
        free = free & ~slot
    return slots.reshape(*candidates.shape[:-1], k)
