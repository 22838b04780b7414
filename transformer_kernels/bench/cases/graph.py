# SPDX-License-Identifier: MIT
"""The graph ops. A shape is NODESxEDGESxCOLUMNS; both ends of each edge are drawn uniformly, and
edges are sorted by target.

``torch`` is the code that models contain: a row for each edge, and index_add or scatter_reduce.
``segments`` is PyTorch's code for sorted edges: a sparse matrix, or segment_reduce. Sorting is not
timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals import pyg
from transformer_kernels.measure.case import Case, Function
from transformer_kernels.measure.derive import derive, grid, whole
from transformer_kernels.measure.sweeps import Grid, Shape
from transformer_kernels.ops.graph import _stock
from transformer_kernels.ops.graph._ops import GATHER_REDUCE, SEGMENT_SOFTMAX
from transformer_kernels.ops.graph.graph import Transpose

_EDGES = ("offsets", "indices", "targets", "back_offsets", "back_indices", "back_order")


def _grid(cols: int) -> Grid:
    on_gpu, on_cpu = (1_000_000, 16_000_000, cols), (100_000, 1_600_000, cols)
    return grid(
        f"1000000x16000000x{cols} (nodes, edges, columns)", 3,
        quick=[(20_000, 320_000, cols)],
        headline={"cuda": [on_gpu], "cpu": [on_cpu]},
        small=[(2_708, 10_556, cols)],  # Cora's
        full=[on_cpu, on_gpu, (170_000, 1_200_000, 2 * cols)],
    )  # fmt: skip


@lru_cache(maxsize=2)
def _graph(nodes: int, edges: int) -> F.Graph:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    targets = torch.randint(nodes, (edges,), device=device).sort().values
    return F.Graph.from_edges(
        torch.stack([torch.randint(nodes, (edges,), device=device), targets]), nodes
    )


def _draw(name: str, shape: Shape) -> Tensor:
    graph = _graph(*shape[:2])
    drawn = (graph.offsets, graph.indices, graph.targets, *graph.transpose)
    return dict(zip(_EDGES, drawn, strict=True))[name]


def _given(edges: tuple[Tensor, ...]) -> F.Graph:
    """A graph of drawn tensors, of which nothing is recomputed."""
    offsets, sources, targets, *back = edges
    graph = F.Graph(offsets, sources, None, back[0].numel() - 1)
    graph.__dict__.update(targets=targets, transpose=Transpose(*back))
    return graph


def _on_graph(function: Function) -> Function:
    """Wraps a function of the graph and the operands as one of the drawn tensors."""

    def run(*tensors: Tensor, **backend: Any) -> Any:
        return function(_given(tensors[: len(_EDGES)]), *tensors[len(_EDGES) :], **backend)

    return run


def _case(
    op: Any, name: str, inputs: tuple[str, ...], sizes: dict[str, str], cols: int,
    torchs: Function, ours: Function, segmented: bool = False, **rivals: Function,
) -> Case:  # fmt: skip
    """A case whose functions take a graph and the inputs. ``sizes`` of inputs are letters: "NC" is
    (nodes, columns). If edges are ``segmented``, they are rows themselves and have no numbers."""

    def sizes_of(tensor: str, shape: Shape) -> Shape:
        by_letter = dict(zip("NEC", shape, strict=True))
        return tuple(by_letter[letter] for letter in sizes.get(tensor, sizes["y"]))

    case = derive(
        op, "graph/gather_reduce", inputs, name=name, fixed={"reduce": 0},
        indices={edge: partial(_draw, edge) for edge in _EDGES}, reference=_on_graph(torchs),
        ours=_on_graph(ours), torchs=_on_graph(torchs), raw=False, grid=_grid(cols), sizes=sizes_of,
        rivals={who: _on_graph(run) for who, run in rivals.items()}, verified=whole,
    )  # fmt: skip
    if not segmented:
        return case
    cost: Callable[..., int] = case.moved  # type: ignore[assignment]
    return replace(case, moved=lambda pass_, arguments: cost(pass_, {**arguments, "indices": None}))


# ---- gather_reduce ------------------------------------------------------------------------------


def _index_add(graph: F.Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    of_heads = None if weight is None else weight.unsqueeze(1)
    return _stock.gather_reduce(
        x, graph.offsets, graph.indices, None, None, None, None, of_heads, 0, graph.targets
    )


def _sparse(graph: F.Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    values = x.new_ones(graph.num_edges) if weight is None else weight
    size = (graph.num_targets, graph.num_sources)
    matrix: Any = torch.sparse_csr_tensor(graph.offsets, graph.indices, values, size)
    return matrix @ x


def _gather(
    graph: F.Graph, x: Tensor, weight: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    return F.gather_reduce(x, graph, weight, backend=backend)


_NODES = {"x": "NC", "weight": "E", "y": "NC"}

OPS = (
    *(
        _case(
            GATHER_REDUCE, name, inputs, _NODES, 64, _index_add, _gather, segments=_sparse,
            pyg=pyg.gather_reduce,
        )
        for name, inputs in (
            ("gather_reduce", ("x",)),
            ("weighted_gather_reduce", ("x", "weight")),
        )
    ),
    _case(
        GATHER_REDUCE, "segment_sum", ("x",), {"x": "EC", "y": "NC"}, 64,
        lambda graph, x: _stock.reduced(x, graph.targets, graph.num_targets),
        lambda graph, x, **on: F.segment_reduce(x, graph.offsets, **on),
        segmented=True,
        segments=lambda graph, x: torch.segment_reduce(x, "sum", offsets=graph.offsets, axis=0),
        pyg=pyg.segment_sum,
    ),
    _case(
        SEGMENT_SOFTMAX, "segment_softmax", ("x",), {"x": "EC", "y": "EC"}, 8,
        lambda graph, x: _stock.segment_softmax(x, graph.offsets, None, graph.targets),
        lambda graph, x, **on: F.segment_softmax(x, graph.offsets, **on),
        pyg=pyg.segment_softmax,
    ),
)  # fmt: skip
