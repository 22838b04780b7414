# SPDX-License-Identifier: MIT
"""The graph ops in PyTorch operations, differentiable any number of times.

A bad index is an error on the CPU. Elsewhere, as in the CUDA kernels, an edge with an index out of
range contributes nothing.
"""

# Functions have the signatures of the raw ops, even where they do not read every argument.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._dtype import accumulate_dtype

SUM, MEAN, MAX = range(3)


class _Places(NamedTuple):
    """The edges in the order of segments: the segment, the number and the other end of each."""

    segment: Tensor  # N for an edge that is left out
    number: Tensor
    across: Tensor

    @classmethod
    def of(cls, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
           rows: int) -> _Places:  # fmt: skip
        edges = rows if indices is None else indices.numel()
        place = torch.arange(edges, device=offsets.device, dtype=offsets.dtype)
        segment = torch.searchsorted(offsets[1:].contiguous(), place, right=True)
        number = place.long() if order is None else order.long()
        across = number if indices is None else indices.long()
        inside = (across >= 0) & (across < rows)
        segment = torch.where(inside, segment, len(offsets) - 1)
        return cls(segment, number, torch.where(inside, across, 0))

    def from_segments(self, rows: Tensor) -> Tensor:
        """The row of each edge's segment; zeros for an edge that is left out."""
        return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])[self.segment]

    def to_segments(self, rows: Tensor, count: int) -> Tensor:
        return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, self.segment, rows)[:count]

    def by_number(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows).index_copy(0, self.number, rows)


def _by_heads(rows: Tensor, heads: int) -> Tensor:
    return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)


def _times(rows: Tensor, weight: Tensor | None, place: _Places) -> Tensor:
    """Multiplies rows (E, C) by the edges' weights (E, H), which are ordered by number."""
    if weight is None:
        return rows
    factor = weight.to(rows.dtype)[place.number]
    return (_by_heads(rows, weight.shape[1]) * factor.unsqueeze(-1)).reshape(rows.shape)


def _sum_heads(rows: Tensor, heads: int) -> Tensor:
    return _by_heads(rows, heads).sum(-1)


def _counts(offsets: Tensor, like: Tensor) -> Tensor:
    return offsets.diff().clamp(min=1).to(like.dtype).unsqueeze(1)


# ---- gather_reduce ------------------------------------------------------------------------------


def _messages(
    x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    weight: Tensor | None,
) -> tuple[_Places, Tensor]:  # fmt: skip
    place = _Places.of(offsets, indices, order, x.shape[0])
    return place, _times(x.to(accumulate_dtype(x))[place.across], weight, place)


def _largest(place: _Places, messages: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns y and the places of its elements: the first of equal ones, or E without edges."""
    edges, cols = messages.shape
    if edges == 0:
        return place.to_segments(messages, count), place.number.new_zeros(count, cols)
    segment = place.segment.unsqueeze(1).expand(-1, cols)
    top = messages.new_full((count + 1, cols), -torch.inf)
    top = top.scatter_reduce(0, segment, messages.detach(), "amax").gather(0, segment)
    found = (messages == top) | (messages.isnan() & top.isnan())
    at = torch.arange(edges, device=messages.device).unsqueeze(1)
    first = at.new_full((count + 1, cols), edges)
    first = first.scatter_reduce(0, segment, torch.where(found, at, edges), "amin")[:count]
    y = messages.gather(0, first.clamp(max=edges - 1))
    return torch.where(first < edges, y, 0), first


def gather_reduce(
    x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    weight: Tensor | None, reduce: int,
) -> Tensor:  # fmt: skip
    place, messages = _messages(x, offsets, indices, order, weight)
    count = len(offsets) - 1
    if reduce == MAX:
        return _largest(place, messages, count)[0].to(x.dtype)
    y = place.to_segments(messages, count)
    return (y / _counts(offsets, y) if reduce == MEAN else y).to(x.dtype)


def chosen_edges(
    x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    weight: Tensor | None, reduce: int,
) -> Tensor:  # fmt: skip
    """For each element of a maximum, the number of the edge that it came from; -1 without edges."""
    if reduce != MAX:
        return offsets.new_empty(0)
    place, messages = _messages(x.detach(), offsets, indices, order, weight)
    first = _largest(place, messages, len(offsets) - 1)[1]
    number = torch.cat([place.number, place.number.new_full((1,), -1)])
    return number[first].to(offsets.dtype)


def gather_reduce_gradient(
    dy: Tensor, x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    weight: Tensor | None, chosen: Tensor, reduce: int, need_dx: bool, need_dweight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    place = _Places.of(offsets, indices, order, x.shape[0])
    g = dy.to(accumulate_dtype(dy))
    g = place.from_segments(g / _counts(offsets, g) if reduce == MEAN else g)
    if reduce == MAX:
        has_chosen = place.from_segments(chosen.long() + 1) == place.number.unsqueeze(1) + 1
        g = torch.where(has_chosen, g, 0)
    dx = dweight = dy.new_empty(0)
    if need_dx:
        dx = torch.zeros_like(x, dtype=g.dtype).index_add(0, place.across, _times(g, weight, place))
    if need_dweight and weight is not None:
        values = x.to(g.dtype)[place.across]
        values = torch.where(has_chosen, values, 0) if reduce == MAX else values
        dweight = place.by_number(_sum_heads(g * values, weight.shape[1]))
    return dx.to(dy.dtype), dweight.to(dy.dtype)


# ---- edge_dot -----------------------------------------------------------------------------------


def edge_dot(
    a: Tensor, b: Tensor, offsets: Tensor, indices: Tensor, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    heads: int,
) -> Tensor:  # fmt: skip
    place = _Places.of(offsets, indices, order, b.shape[0])
    wide = accumulate_dtype(a)
    products = place.from_segments(a.to(wide)) * b.to(wide)[place.across]
    return place.by_number(_sum_heads(products, heads)).to(a.dtype)


def edge_dot_gradient(
    dy: Tensor, a: Tensor, b: Tensor, offsets: Tensor, indices: Tensor, order: Tensor | None,
    back_offsets: Tensor | None, back_indices: Tensor | None, back_order: Tensor | None,
    need_da: bool, need_db: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    place = _Places.of(offsets, indices, order, b.shape[0])
    wide = accumulate_dtype(a)
    da = db = dy.new_empty(0)
    if need_da:
        da = place.to_segments(_times(b.to(wide)[place.across], dy, place), len(offsets) - 1)
    if need_db:
        rows = _times(place.from_segments(a.to(wide)), dy, place)
        db = torch.zeros_like(b, dtype=wide).index_add(0, place.across, rows)
    return da.to(dy.dtype), db.to(dy.dtype)


# ---- segment_softmax ----------------------------------------------------------------------------


def segment_softmax(x: Tensor, offsets: Tensor, order: Tensor | None) -> Tensor:
    place = _Places.of(offsets, None, order, x.shape[0])
    z = x.to(accumulate_dtype(x))[place.number]
    count = len(offsets) - 1
    segment = place.segment.unsqueeze(1).expand_as(z)
    top = z.new_full((count + 1, z.shape[1]), -torch.inf)
    top = top.scatter_reduce(0, segment, z.detach(), "amax")
    powers = (z - top.gather(0, segment)).exp()
    y = powers / place.from_segments(place.to_segments(powers, count))
    return place.by_number(y).to(x.dtype)


def segment_softmax_gradient(
    dy: Tensor, y: Tensor, offsets: Tensor, order: Tensor | None
) -> Tensor:
    place = _Places.of(offsets, None, order, y.shape[0])
    wide = accumulate_dtype(y)
    g, z = dy.to(wide)[place.number], y.to(wide)[place.number]
    sums = place.from_segments(place.to_segments(z * g, len(offsets) - 1))
    return place.by_number(z * (g - sums)).to(dy.dtype)
