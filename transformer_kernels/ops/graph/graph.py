# SPDX-License-Identifier: MIT
"""A graph's edges, sorted once for all ops."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import (
    ArgumentIndexError,
    ArgumentTypeError,
    ArgumentValueError,
    as_count,
    check_indices,
    check_tensors,
    renamed,
    shape_text,
)
from .._declare_arguments import check_device
from .._declare_checks import check_values
from .._public import explained
from ._ops import SEGMENT_SOFTMAX


class Transpose(NamedTuple):
    """The graph's edges sorted by source, by which gradients of sources are summed."""

    offsets: Tensor  # (num_sources + 1,)
    indices: Tensor  # (E,): the target of each edge
    order: Tensor  # (E,): the number of each edge


@explained
def segment_offsets(segments: Tensor, count: int | None = None) -> Tensor:
    """Computes offsets (count + 1,) of sorted segment numbers (E,), such as PyTorch Geometric's
    ``batch``.

    Args:
        segments: the segment of each row, int32 or int64, in ascending order.
        count: number of segments; by default one more than the last segment number.

    Segment i has the rows ``offsets[i]`` to ``offsets[i + 1] - 1``. The dtype is that of
    ``segments``, whose values are checked, which on CUDA waits for the device.

    >>> tfk.functional.segment_offsets(torch.tensor([0, 0, 2]))
    tensor([0, 2, 2, 3])
    """
    _check_vector("segment_offsets", "segments", segments)
    if count is None:
        count = int(segments[-1]) + 1 if len(segments) else 0
    _check_range("segment_offsets", "segments", segments, count, "segments")
    if len(segments) > 1 and bool((segments[1:] < segments[:-1]).any()):
        raise ArgumentValueError("segment_offsets: segments fall, expected them sorted")
    return _offsets(segments, count)


def _check_offsets(op: str, offsets: Tensor, edges: int) -> None:
    """Asks C++ whether ``offsets`` divide so many edges; waits for the device."""
    rows = torch.empty(()).expand(edges, 1)
    try:
        check_values(SEGMENT_SOFTMAX, {"x": rows, "offsets": offsets.cpu(), "order": None})
    except (ArgumentValueError, ArgumentTypeError) as error:
        raise renamed(op, error) from None


def _check_range(op: str, name: str, indices: Tensor, limit: int, what: str) -> None:
    bad = ((indices < 0) | (indices >= limit)).nonzero()
    if len(bad):
        index = int(indices[bad[0, 0]])
        raise ArgumentIndexError(f"{op}: {name} holds {index}, expected one of {limit} {what}")


def _check_vector(op: str, name: str, value: Any) -> None:
    check_tensors(op, {name: value})
    check_indices(op, name, value)
    if value.dim() != 1:
        raise ArgumentValueError(f"{op}: {name} has {value.dim()} dimensions, expected 1")


def _offsets(sorted_segments: Tensor, count: int) -> Tensor:
    at = torch.arange(count + 1, device=sorted_segments.device, dtype=sorted_segments.dtype)
    found = torch.searchsorted(sorted_segments.contiguous(), at)
    return found.to(sorted_segments.dtype)


def _sorted(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts stably, so edges with equal ends keep their order; places have the dtype of
    ``values``."""
    ordered, places = values.sort(stable=True)
    return ordered, places.to(values.dtype)


class Graph:
    """Directed edges, each from a source to a target, sorted by target (CSR).

    Create a graph once, with :meth:`from_edges` or :meth:`from_csr`, and pass it to any number of
    calls of :func:`~transformer_kernels.functional.gather_reduce` and the other ops. Edges keep
    their original numbers, by which weights, scores and softmax are ordered.

    Attributes:
        offsets: (num_targets + 1,), the range of places of each target's edges.
        indices: (E,), the source of the edge in each place.
        order: (E,), the number of the edge in each place; None if edges were given sorted.
        num_sources, num_targets, num_edges: numbers of nodes on either side, and of edges.
        transpose: the edges sorted by source, computed when a gradient first needs it.

    Offsets and indices that are given sorted are not copied: the attributes are views of them.

    >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])  # sources, targets
    >>> graph = tfk.functional.Graph.from_edges(edges)
    >>> graph.num_targets, graph.num_edges
    (3, 3)
    """

    offsets: Tensor
    indices: Tensor
    order: Tensor | None
    num_sources: int

    def __init__(
        self, offsets: Tensor, indices: Tensor, order: Tensor | None, num_sources: int
    ) -> None:
        self.offsets = offsets
        self.indices = indices
        self.order = order
        self.num_sources = num_sources

    @classmethod
    def from_edges(cls, edges: Tensor, num_nodes: int | tuple[int, int] | None = None) -> Graph:
        """Makes a graph of a list of edges (COO).

        Args:
            edges: (2, E), int32 or int64, in any order: ``edges[0]`` are sources, ``edges[1]``
                targets, as in PyTorch Geometric's ``edge_index``.
            num_nodes: number of nodes, some of which may have no edge; or (sources, targets) for a
                graph between two kinds of nodes. By default one more than the largest node number.

        A node out of range is an IndexError, also on CUDA, where this waits for the device.
        """
        op = "Graph.from_edges"
        check_tensors(op, {"edges": edges})
        check_indices(op, "edges", edges)
        if edges.dim() != 2 or edges.shape[0] != 2:
            raise ArgumentValueError(f"{op}: edges has shape {shape_text(edges)}, expected (2, E)")
        if num_nodes is None:
            num_nodes = int(edges.max()) + 1 if edges.numel() else 0
        sources, targets = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        num_sources, num_targets = (
            as_count(op, "num_nodes", number, least=0) for number in (sources, targets)
        )
        _check_range(op, "edges[0]", edges[0], num_sources, "nodes")
        _check_range(op, "edges[1]", edges[1], num_targets, "nodes")
        source, target = edges[0], edges[1]
        if bool((target[1:] >= target[:-1]).all()):
            return cls(_offsets(target, num_targets), source.contiguous(), None, num_sources)
        ordered, order = _sorted(target)
        return cls(_offsets(ordered, num_targets), source[order], order, num_sources)

    @classmethod
    def from_csr(cls, offsets: Tensor, indices: Tensor, num_sources: int | None = None) -> Graph:
        """Makes a graph of rows of sources: ``indices[offsets[i]]`` to ``indices[offsets[i + 1] -
        1]`` are the sources of target i, as in a ``torch.sparse_csr`` matrix of (targets, sources).

        By default ``num_sources`` is the number of targets. Values are checked as in
        :meth:`from_edges`.
        """
        op = "Graph.from_csr"
        check_tensors(op, {"offsets": offsets})
        _check_vector(op, "indices", indices)
        check_device(op, "indices", indices, offsets)
        _check_offsets(op, offsets, len(indices))
        sources = len(offsets) - 1
        if num_sources is not None:
            sources = as_count(op, "num_sources", num_sources, least=0)
        _check_range(op, "indices", indices, sources, "nodes")
        return cls(offsets, indices, None, sources)

    @property
    def num_targets(self) -> int:
        return int(self.offsets.shape[0] - 1)

    @property
    def num_edges(self) -> int:
        return int(self.indices.shape[0])

    @property
    def device(self) -> torch.device:
        return self.offsets.device

    @cached_property
    def targets(self) -> Tensor:
        """(E,), the target of the edge in each place."""
        place = torch.arange(self.num_edges, device=self.device, dtype=self.offsets.dtype)
        found = torch.searchsorted(self.offsets[1:].contiguous(), place, right=True)
        return found.to(self.indices.dtype)

    @cached_property
    def transpose(self) -> Transpose:
        ordered, places = _sorted(self.indices)
        order = places if self.order is None else self.order[places]
        return Transpose(_offsets(ordered, self.num_sources), self.targets[places], order)

    @cached_property
    def degrees(self) -> Tensor:
        """(num_targets,), the number of edges of each target."""
        return self.offsets.diff()

    def to(self, device: torch.device | str) -> Graph:
        order = None if self.order is None else self.order.to(device)
        return Graph(self.offsets.to(device), self.indices.to(device), order, self.num_sources)

    def __repr__(self) -> str:
        return (
            f"Graph(num_sources={self.num_sources}, num_targets={self.num_targets},"
            f" num_edges={self.num_edges})"
        )
