# SPDX-License-Identifier: MIT
"""The ops of graphs: a shape is NODESxEDGESxCOLUMNS, both ends of each edge drawn evenly, and edges
sorted by their target.

``torch`` is what models write: a row for each edge, and index_add or scatter_reduce; ``segments``
what PyTorch has for sorted edges: a sparse matrix, segment_reduce. No one sorts anything while
measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Build, Case, Function, differentiate
from transformer_kernels.measure.sweeps import Grid, Shape
from transformer_kernels.ops.graph.graph import Transpose

_EDGES = ("offsets", "sources", "targets", "back_offsets", "back_targets", "back_order")


def _grid(cols: int) -> Grid:
    on_gpu, on_cpu = (1_000_000, 16_000_000, cols), (100_000, 1_600_000, cols)
    return Grid(
        forms=f"1000000x16000000x{cols} (nodes, edges, columns)",
        fold=lambda sizes: sizes if len(sizes) == 3 else None,
        sweeps={
            "quick": lambda *_: [(20_000, 320_000, cols)],
            "headline": lambda device, _: [on_gpu if device.type == "cuda" else on_cpu],
            "small": lambda *_: [(2_708, 10_556, cols)],  # Cora's
            "full": lambda *_: [on_cpu, on_gpu, (170_000, 1_200_000, 2 * cols)],
        },
    )


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


_INDICES: dict[str, Callable[[Shape], Tensor]] = {name: partial(_draw, name) for name in _EDGES}


def _given(edges: tuple[Tensor, ...]) -> F.Graph:
    """The graph of drawn tensors, nothing of which is made anew."""
    offsets, sources, targets, *back = edges
    graph = F.Graph(offsets, sources, None, back[0].numel() - 1)
    graph.__dict__.update(targets=targets, transpose=Transpose(*back))
    return graph


def _on_graph(function: Function) -> Function:
    """A function of the graph and the operands as one of the drawn tensors."""

    def run(*tensors: Tensor) -> Any:
        return function(_given(tensors[: len(_EDGES)]), *tensors[len(_EDGES) :])

    return run


def _backward(function: Function, operands: tuple[str, ...]) -> Build:
    def build(arguments: Arguments) -> Callable[[], Any]:
        of_operands = partial(function, *(arguments[name] for name in _EDGES))
        return differentiate(of_operands, operands, ("dy",))(arguments)

    return build


def _whole(_: Arguments) -> Callable[[str, Tensor], Tensor]:
    return lambda _, tensor: tensor


def _op(
    name: str, inputs: tuple[str, ...], sizes: Callable[[str, Shape], Shape],
    moved: Callable[[str, Arguments], int], functions: dict[str, Function], cols: int,
) -> Case:  # fmt: skip
    """``functions`` are of a graph and the inputs; the first is the reference."""
    by_provider = {provider: _on_graph(function) for provider, function in functions.items()}
    return Case(
        name=name,
        key="graph/gather_reduce",
        inputs=inputs,
        parameters=(),
        outputs=("y",),
        backward_reads=("dy",),
        reference=by_provider["torch"],
        save=lambda _: {},
        functions=by_provider,
        backward={provider: _backward(run, inputs) for provider, run in by_provider.items()},
        compiled_backward=lambda compiled: _backward(compiled(by_provider["torch"]), inputs),
        gradients=len(inputs),
        grid=_grid(cols),
        sizes=sizes,
        verified=_whole,
        indices=_INDICES,
        moved=moved,
    )


def _passes(pass_: str, forward: int, backward: int) -> int:
    return {"forward": forward, "backward": backward, "both": forward + backward}[pass_]


# ---- gather_reduce ------------------------------------------------------------------------------


def _gather_sizes(name: str, shape: Shape) -> Shape:
    nodes, edges, cols = shape
    return (edges,) if name == "weight" else (nodes, cols)


def _gathered(pass_: str, arguments: Arguments) -> int:
    """A row for each edge, either way; products of ends as well where edges have weights."""
    x, sources = arguments["x"], arguments["sources"]
    row = x.nbytes // len(x)
    forward = len(sources) * row + x.nbytes + sources.nbytes
    backward = forward
    if "weight" in arguments:
        weight = arguments["weight"].nbytes
        forward += weight
        backward += 2 * weight + arguments["back_order"].nbytes + forward
    return _passes(pass_, forward, backward)


def _index_add(graph: F.Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    messages = x[graph.indices]
    messages = messages if weight is None else messages * weight.unsqueeze(1)
    return x.new_zeros(graph.num_targets, x.shape[1]).index_add(0, graph.targets, messages)


def _sparse(graph: F.Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    values = x.new_ones(graph.num_edges) if weight is None else weight
    size = (graph.num_targets, graph.num_sources)
    matrix: Any = torch.sparse_csr_tensor(graph.offsets, graph.indices, values, size)
    return matrix @ x


_PYG_GRAPHS: Any = WeakTensorKeyDictionary()  # by their sources


def _pyg_graph(graph: F.Graph) -> Any:
    """PyTorch Geometric's own, with all that it keeps of one, made once."""
    from torch_geometric import EdgeIndex

    if graph.indices not in _PYG_GRAPHS:
        edges = torch.stack([graph.indices, graph.targets])
        size = (graph.num_sources, graph.num_targets)
        made = EdgeIndex(edges, sparse_size=size, sort_order="col")
        _PYG_GRAPHS[graph.indices] = made.fill_cache_()
    return _PYG_GRAPHS[graph.indices]


def _pyg(graph: F.Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Its sparse product, which takes what is fastest of PyTorch and of its extensions; a row for
    each edge where PyTorch on a CPU has no product of 16-bit numbers."""
    from torch_geometric.utils import scatter

    if not x.is_cuda and x.dtype.itemsize == 2:
        rows = x[graph.indices] if weight is None else x[graph.indices] * weight.unsqueeze(1)
        summed: Tensor = scatter(rows, graph.targets, 0, graph.num_targets, "sum")
        return summed
    if weight is None and x.dtype is not torch.float32:  # the ones that it keeps
        weight = x.new_ones(graph.num_edges)
    product: Tensor = _pyg_graph(graph).matmul(x, weight, transpose=True)
    return product


def _pyg_sum(graph: F.Graph, x: Tensor) -> Tensor:
    from torch_geometric.utils import segment

    summed: Tensor = segment(x, graph.offsets, "sum")
    return summed


def _ours(backend: str) -> Function:
    return lambda graph, x, weight=None: F.gather_reduce(x, graph, weight, backend=backend)


_GATHER: dict[str, Function] = {
    "torch": _index_add,
    "segments": _sparse,
    "pyg": _pyg,
    "triton": _ours("triton"),
    "ours": _ours("auto"),
}

# ---- segments -----------------------------------------------------------------------------------


def _segment_sizes(name: str, shape: Shape) -> Shape:
    nodes, edges, cols = shape
    return (edges, cols) if name == "x" else (nodes, cols)


def _summed(pass_: str, arguments: Arguments) -> int:
    moved = sum(arguments[name].nbytes for name in ("x", "dy", "offsets"))
    return _passes(pass_, moved, moved)


_SEGMENT_SUM: dict[str, Function] = {
    "torch": lambda graph, x: x.new_zeros(graph.num_targets, x.shape[1]).index_add(
        0, graph.targets, x
    ),
    "segments": lambda graph, x: torch.segment_reduce(x, "sum", offsets=graph.offsets, axis=0),
    "pyg": _pyg_sum,
    "triton": lambda graph, x: F.segment_reduce(x, graph.offsets, backend="triton"),
    "ours": lambda graph, x: F.segment_reduce(x, graph.offsets),
}

# ---- segment_softmax ----------------------------------------------------------------------------


def _softmax_sizes(_: str, shape: Shape) -> Shape:
    return shape[1:]


def _softmax_moved(pass_: str, arguments: Arguments) -> int:
    x, offsets = arguments["x"].nbytes, arguments["offsets"].nbytes
    return _passes(pass_, 2 * x + offsets, 3 * x + offsets)


def _scatter_softmax(graph: F.Graph, x: Tensor) -> Tensor:
    index = graph.targets.unsqueeze(1).expand_as(x)
    top = x.new_zeros(graph.num_targets, x.shape[1])
    top = top.scatter_reduce(0, index, x.detach(), "amax", include_self=False)
    powers = (x - top[graph.targets]).exp()
    return powers / torch.zeros_like(top).index_add(0, graph.targets, powers)[graph.targets]


def _pyg_softmax(graph: F.Graph, x: Tensor) -> Tensor:
    from torch_geometric.utils import softmax

    y: Tensor = softmax(x, ptr=graph.offsets, dim=0)
    return y


_SOFTMAX: dict[str, Function] = {
    "torch": _scatter_softmax,
    "pyg": _pyg_softmax,
    "triton": lambda graph, x: F.segment_softmax(x, graph.offsets, backend="triton"),
    "ours": lambda graph, x: F.segment_softmax(x, graph.offsets),
}

OPS = (
    _op("gather_reduce", ("x",), _gather_sizes, _gathered, _GATHER, 64),
    _op("weighted_gather_reduce", ("x", "weight"), _gather_sizes, _gathered, _GATHER, 64),
    _op("segment_sum", ("x",), _segment_sizes, _summed, _SEGMENT_SUM, 64),
    _op("segment_softmax", ("x",), _softmax_sizes, _softmax_moved, _SOFTMAX, 8),
)
