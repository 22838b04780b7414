# SPDX-License-Identifier: MIT
"""Arguments of the graph ops that fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..functional import Graph
from ..ops.graph._ops import EDGE_DOT, GATHER_REDUCE, SEGMENT_SOFTMAX
from .inputs import randn

Values = dict[str, Any]


def small_graph(device: str, dtype: torch.dtype = torch.int64) -> Graph:
    """Three sources and four targets, one without edges and one with several; edges are
    unsorted."""
    edges = torch.tensor([[2, 0, 2, 1, 0], [3, 0, 0, 2, 0]], dtype=dtype, device=device)
    return Graph.from_edges(edges, (3, 4))


def _edges(graph: Graph, *, across: bool = True) -> Values:
    back = graph.transpose
    given: Values = {"offsets": graph.offsets, "indices": graph.indices, "order": graph.order}
    given |= {"back_offsets": back.offsets, "back_indices": back.indices, "back_order": back.order}
    return given if across else dict.fromkeys(given) | {"offsets": graph.offsets}


def _gather_reduce(device: str) -> Iterator[Values]:
    def given(rows: int, weight: Tensor | None, reduce: int, edges: Values) -> Values:
        x = randn((rows, 8), torch.float32, device)
        values = {"x": x, **edges, "weight": weight, "reduce": reduce}
        return {name: values[name] for name in GATHER_REDUCE.names}

    weight = randn((5, 2), torch.float32, device)
    graph = small_graph(device)
    for reduce in range(3):
        yield given(3, weight, reduce, _edges(graph))
    yield given(3, None, 1, _edges(small_graph(device, torch.int32)))
    segments = _edges(graph, across=False)
    yield given(5, None, 2, segments)
    yield given(5, weight, 0, segments | {"order": graph.order})


def _edge_dot(device: str) -> Iterator[Values]:
    for heads in (2, 1):
        graph = small_graph(device)
        a, b = (randn((rows, 8), torch.float32, device) for rows in (4, 3))
        yield {"a": a, "b": b, **_edges(graph), "heads": heads}


def _segment_softmax(device: str) -> Iterator[Values]:
    graph = small_graph(device)
    for order in (graph.order, None):
        x = randn((5, 3), torch.float32, device)
        given = {"x": x, "offsets": graph.offsets, "order": order}
        yield {name: given[name] for name in SEGMENT_SOFTMAX.names}


COMBINATIONS: dict[str, Callable[[str], Iterator[Values]]] = {
    GATHER_REDUCE.name: _gather_reduce,
    EDGE_DOT.name: _edge_dot,
    SEGMENT_SOFTMAX.name: _segment_softmax,
}

# Values that the ops refuse beyond wrong types, and values that they take.
BAD: dict[str, dict[str, Any]] = {
    "reduce": {"below": -1, "above": 3},
    "heads": {"none": 0, "no divisor": 3},
}
GOOD = {"weight": ("short",)}
OWN: dict[str, dict[str, Any]] = {
    name: {"combinations": made, "good": GOOD, "bad": BAD} for name, made in COMBINATIONS.items()
}
