# SPDX-License-Identifier: MIT
"""Message passing and segments: sums, means and maxima, softmax, products of edges' ends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, check_tensors, shape_text
from .._public import overridable
from ._ops import EDGE_DOT, GATHER_REDUCE, SEGMENT_SOFTMAX
from .graph import Graph

_REDUCE = {"sum": 0, "mean": 1, "max": 2}

_gather, _dot, _softmax = GATHER_REDUCE.call, EDGE_DOT.call, SEGMENT_SOFTMAX.call


def _reduce_of(op: str, reduce: Any) -> int:
    if reduce not in _REDUCE:
        raise ArgumentValueError(f"{op}: reduce is {reduce!r}, expected 'sum', 'mean' or 'max'")
    return _REDUCE[reduce]


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
    """A matrix of all dimensions but the first."""
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
    """What the gradient of ``x`` is summed by, where it is wanted."""
    wanted = x.requires_grad and torch.is_grad_enabled()
    return tuple(graph.transpose) if wanted else (None, None, None)


@overridable
def segment_reduce(
    x: Tensor, offsets: Tensor | Graph, reduce: str = "sum", *, backend: str = "auto"
) -> Tensor:
    """The sum, mean or maximum of each segment's rows; 0 of none.

    Args:
        x: (E, ...), floating-point; rows of a segment lie one after the other.
        offsets: (N + 1,), int32 or int64: segment i has the rows ``offsets[i]`` to
            ``offsets[i + 1] - 1`` (:func:`segment_offsets` makes them of segment numbers). Or a
            :class:`Graph`, of whose targets' edges ``x`` has a row each, by the edges' numbers.
        reduce: ``"sum"``, ``"mean"`` or ``"max"``, which is NaN where one is.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns (N, ...) in ``x``'s dtype, summed in float32 (float64 for float64) in the order of rows:
    the same bits every time. The gradient of a maximum goes to the first of equal rows.

    Offsets that begin with no 0, fall or end elsewhere than at E are a ValueError on the CPU. On
    CUDA, which nothing waits for, results are then unspecified.
    """
    places, order = _segments_of("segment_reduce", offsets)
    rows = _rows("segment_reduce", "x", x)
    number = _reduce_of("segment_reduce", reduce)
    y = _gather(rows, places, None, order, None, None, None, None, number, backend)
    return y.view(y.shape[0], *x.shape[1:])


@overridable
def segment_softmax(x: Tensor, offsets: Tensor | Graph, *, backend: str = "auto") -> Tensor:
    """Softmax over each segment's rows, column by column.

    Args:
        x: (E, ...), floating-point.
        offsets: of segments, or a :class:`Graph`, as in :func:`segment_reduce`.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns ``x``'s shape and dtype. NaN, or infinity, makes its segment's column NaN, and no other.
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

    Over its edges e; 0 where it has none. There is no tensor of all messages.

    Args:
        x: (num_sources, ...), floating-point.
        graph: the edges.
        weight: (E,), or (E, H) for heads, by the edges' numbers and of ``x``'s dtype; the columns
            of ``x`` are H equal parts, one for each head.
        reduce: ``"sum"``, ``"mean"`` (the sum by the number of edges, whatever they weigh) or
            ``"max"``, which is NaN where a message is.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns (num_targets, ...) in ``x``'s dtype. Sums, also those of gradients, are in float32
    (float64 for float64) and in a fixed order, without atomics: the same bits every time. The
    gradient of ``x`` takes the graph's transpose, that of ``weight`` a product an edge.
    """
    op = "gather_reduce"
    edges = _graph_of(op, graph)
    rows = _rows(op, "x", x)
    _check_rows(op, "x", rows, edges.num_sources, "sources")
    if weight is not None:
        check_tensors(op, {"weight": weight})
        weight = weight.unsqueeze(1) if weight.dim() == 1 else weight
    y = _gather(rows, edges.offsets, edges.indices, edges.order, *_transpose(edges, rows), weight,
                _reduce_of(op, reduce), backend)  # fmt: skip
    return y.view(y.shape[0], *x.shape[1:])


@overridable
def edge_dot(a: Tensor, b: Tensor, graph: Graph, *, backend: str = "auto") -> Tensor:
    """The product of each edge's ends: ``a[target of e] . b[source of e]``.

    Args:
        a: (num_targets, D), or (num_targets, H, D) for heads; floating-point.
        b: (num_sources, D) or (num_sources, H, D), of ``a``'s dtype.
        graph: the edges.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns (E,) or (E, H) by the edges' numbers, in ``a``'s dtype. Gradients are sums as those of
    :func:`gather_reduce`.
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
    """Attention along the edges of a graph: of each target, to its sources alone.

    ``softmax over its edges of (query[target] . key[source] * scale)``, by which values are summed:
    :func:`edge_dot`, :func:`segment_softmax` and :func:`gather_reduce` (Shi et al. 2021,
    arXiv:2009.03509).

    Args:
        query: (num_targets, H, D), floating-point; or (num_targets, D).
        key, value: (num_sources, H, D), or (num_sources, D).
        graph: the edges.
        scale: 1 / sqrt(D) by default.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns the shape of ``query`` with the last dimension of ``value``; 0 where a target has no
    edge.
    """
    check_tensors("graph_attention", {"query": query, "key": key, "value": value})
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = edge_dot(query * scale, key, graph, backend=backend)
    weight = segment_softmax(scores, graph, backend=backend)
    return gather_reduce(value, graph, weight, backend=backend)
