# SPDX-License-Identifier: MIT
"""Message passing and segments: sums, means and maxima, softmax, and products of edges' ends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, as_choice, check_tensors, shape_text
from .._public import overridable
from ._ops import EDGE_DOT, GATHER_REDUCE, SEGMENT_SOFTMAX
from .graph import Graph

_REDUCE = {"sum": 0, "mean": 1, "max": 2}

_gather, _dot, _softmax = GATHER_REDUCE.call, EDGE_DOT.call, SEGMENT_SOFTMAX.call


def _graph_of(op: str, graph: Any) -> Graph:
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(f"{op}: graph is {type(graph).__name__}, expected a Graph")
    return graph


def _segments_of(op: str, offsets: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(offsets, Graph):
        return offsets.offsets, offsets.order
    check_tensors(op, {"offsets": offsets})
    return offsets, None


def _rows(op: str, name: str, x: Any) -> Tensor:
    """Flattens all dimensions but the first, to a matrix."""
    check_tensors(op, {name: x})
    if x.dim() == 0:
        raise ArgumentValueError(f"{op}: {name} has 0 dimensions, expected at least 1")
    rows: Tensor = x.unsqueeze(1) if x.dim() == 1 else x if x.dim() == 2 else x.flatten(1)
    return rows


def _check_rows(op: str, name: str, x: Tensor, count: int, what: str) -> None:
    if x.shape[0] != count:
        raise ArgumentValueError(
            f"{op}: {name} has {x.shape[0]} rows, expected {count} (the {what} of graph)"
        )


def _transpose(graph: Graph, x: Tensor) -> tuple[Any, ...]:
    """The graph's transpose, by which the gradient of ``x`` is summed; None thrice if it is not
    wanted."""
    wanted = x.requires_grad and torch.is_grad_enabled()
    return tuple(graph.transpose) if wanted else (None, None, None)


@overridable
def segment_reduce(
    x: Tensor, offsets: Tensor | Graph, reduce: str = "sum", *, backend: str = "auto"
) -> Tensor:
    """Computes the sum, mean or maximum of each segment's rows; 0 for an empty segment.

    Args:
        x: (E, ...), floating-point; rows of a segment are adjacent.
        offsets: (N + 1,), int32 or int64: segment i has the rows ``offsets[i]`` to ``offsets[i + 1]
            - 1`` (:func:`segment_offsets` makes them from segment numbers). Or a :class:`Graph`,
            whose targets' edges have one row of ``x`` each, by the edges' numbers.
        reduce: ``"sum"``, ``"mean"`` or ``"max"``, which is NaN if a row has NaN.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns (N, ...) in ``x``'s dtype, summed in float32 (float64 for float64) in the order of rows,
    so it is the same bits every time. The gradient of a maximum goes to the first of equal rows.

    Offsets that do not begin with 0, that fall, or that do not end at E are a ValueError on the
    CPU. On CUDA, which is not waited for, results are then unspecified.

    >>> batch = torch.tensor([0, 0, 1])  # the graph of each node
    >>> offsets = tfk.functional.segment_offsets(batch)
    >>> tfk.functional.segment_reduce(torch.tensor([[1.0], [3.0], [5.0]]), offsets, "mean")
    tensor([[2.],
            [5.]])
    """
    places, order = _segments_of("segment_reduce", offsets)
    rows = _rows("segment_reduce", "x", x)
    number = as_choice("segment_reduce", "reduce", reduce, _REDUCE)
    y = _gather(rows, places, None, order, None, None, None, None, number, backend)
    return y.view(y.shape[0], *x.shape[1:])


@overridable
def segment_softmax(x: Tensor, offsets: Tensor | Graph, *, backend: str = "auto") -> Tensor:
    """Computes softmax over each segment's rows, column by column.

    Args:
        x: (E, ...), floating-point.
        offsets: offsets of segments, or a :class:`Graph`, as in :func:`segment_reduce`.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns ``x``'s shape and dtype. NaN or infinity makes its column of its segment NaN, and no
    other.

    >>> offsets = torch.tensor([0, 2, 3])
    >>> tfk.functional.segment_softmax(torch.zeros(3, 1), offsets)
    tensor([[0.5000],
            [0.5000],
            [1.0000]])
    """
    places, order = _segments_of("segment_softmax", offsets)
    rows = _rows("segment_softmax", "x", x)
    return _softmax(rows, places, order, backend).view(x.shape)


@overridable
def gather_reduce(
    x: Tensor,
    graph: Graph,
    weight: Tensor | None = None,
    reduce: str = "sum",
    *,
    backend: str = "auto",
) -> Tensor:
    """Message passing: each target's sum, mean or maximum of ``weight[e] * x[source of e]``.

    The sum is over the target's edges e, and 0 if there are none. Messages are never stored.

    Args:
        x: (num_sources, ...), floating-point.
        graph: the edges.
        weight: (E,), or (E, H) for heads, by the edges' numbers and in ``x``'s dtype; the columns
            of ``x`` are H equal parts, one per head.
        reduce: ``"sum"``, ``"mean"`` (the sum divided by the number of edges, whatever their
            weights) or ``"max"``, which is NaN if a message is.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns (num_targets, ...) in ``x``'s dtype. Sums, including those of gradients, are in float32
    (float64 for float64) and in a fixed order, without atomics, so they are the same bits every
    time. The gradient of ``x`` needs the graph's transpose, that of ``weight`` a product per edge.

    >>> edges = torch.tensor([[0, 1, 2], [1, 2, 1]])  # sources, targets
    >>> graph = tfk.functional.Graph.from_edges(edges, 3)
    >>> tfk.functional.gather_reduce(torch.tensor([[1.0], [2.0], [4.0]]), graph)
    tensor([[0.],
            [5.],
            [2.]])
    """
    op = "gather_reduce"
    edges = _graph_of(op, graph)
    rows = _rows(op, "x", x)
    _check_rows(op, "x", rows, edges.num_sources, "sources")
    if weight is not None:
        check_tensors(op, {"weight": weight})
        weight = weight.unsqueeze(1) if weight.dim() == 1 else weight
    y = _gather(rows, edges.offsets, edges.indices, edges.order, *_transpose(edges, rows), weight,
                as_choice(op, "reduce", reduce, _REDUCE), backend)  # fmt: skip
    return y.view(y.shape[0], *x.shape[1:])


@overridable
def edge_dot(a: Tensor, b: Tensor, graph: Graph, *, backend: str = "auto") -> Tensor:
    """Computes the dot product of each edge's ends, ``a[target] @ b[source]``.

    Args:
        a: (num_targets, D), floating-point; or (num_targets, H, D) with heads.
        b: (num_sources, D) or (num_sources, H, D), of ``a``'s dtype.
        graph: the edges.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns (E,) or (E, H) by the edges' numbers, in ``a``'s dtype. Gradients are summed as in
    :func:`gather_reduce`.

    >>> graph = tfk.functional.Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), 2)
    >>> a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2, 2)
    >>> tfk.functional.edge_dot(a, b, graph)
    tensor([7., 3.])
    """
    op = "edge_dot"
    edges = _graph_of(op, graph)
    check_tensors(op, {"a": a, "b": b})
    for name, x in (("a", a), ("b", b)):
        if x.dim() not in (2, 3):
            raise ArgumentValueError(f"{op}: {name} has {x.dim()} dimensions, expected 2 or 3")
    if a.shape[1:] != b.shape[1:]:
        raise ArgumentValueError(
            f"{op}: b has shape {shape_text(b)}, expected (num_sources,"
            f" {str(tuple(a.shape[1:])).strip('(),')}) (the dimensions of a)"
        )
    left, right = _rows(op, "a", a), _rows(op, "b", b)
    _check_rows(op, "a", left, edges.num_targets, "targets")
    _check_rows(op, "b", right, edges.num_sources, "sources")
    heads = a.shape[1] if a.dim() == 3 else 1
    y = _dot(left, right, edges.offsets, edges.indices, edges.order, *_transpose(edges, right),
             heads, backend)  # fmt: skip
    return y if a.dim() == 3 else y.squeeze(1)


@overridable
def graph_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: Graph,
    scale: float | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Attention along the edges of a graph: each target attends to the sources of its edges.

    Values are summed with the weights ``softmax over edges of (query[target] . key[source] *
    scale)``. This is :func:`edge_dot`, :func:`segment_softmax` and :func:`gather_reduce` (Shi et
    al. 2021, arXiv:2009.03509).

    Args:
        query: (num_targets, H, D), floating-point; or (num_targets, D).
        key, value: (num_sources, H, D), or (num_sources, D).
        graph: the edges.
        scale: default ``1 / sqrt(D)``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns ``query``'s shape with the last dimension of ``value``; 0 for a target without edges.

    >>> graph = tfk.functional.Graph.from_edges(torch.tensor([[0, 1, 2], [1, 2, 1]]), 3)
    >>> query, key, value = torch.randn(3, 3, 4, 16)  # tensors, nodes, heads, dim
    >>> tfk.functional.graph_attention(query, key, value, graph).shape
    torch.Size([3, 4, 16])
    """
    check_tensors("graph_attention", {"query": query, "key": key, "value": value})
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = edge_dot(query * scale, key, graph, backend=backend)
    weight = segment_softmax(scores, graph, backend=backend)
    return gather_reduce(value, graph, weight, backend=backend)
