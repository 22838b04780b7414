# SPDX-License-Identifier: MIT
"""Graph ops by PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from transformer_kernels.functional import Graph

_GRAPHS: Any = WeakTensorKeyDictionary()  # keyed by their sources


def _graph(graph: Graph) -> Any:
    """PyTorch Geometric's own graph, with everything that it caches, made once."""
    from torch_geometric import EdgeIndex

    if graph.indices not in _GRAPHS:
        edges = torch.stack([graph.indices, graph.targets])
        size = (graph.num_sources, graph.num_targets)
        made = EdgeIndex(edges, sparse_size=size, sort_order="col")
        _GRAPHS[graph.indices] = made.fill_cache_()
    return _GRAPHS[graph.indices]


def gather_reduce(graph: Graph, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Its sparse product, which chooses the fastest of PyTorch and its extensions; rows per edge
    where PyTorch has no 16-bit product on a CPU."""
    from torch_geometric.utils import scatter

    if not x.is_cuda and x.dtype.itemsize == 2:
        rows = x[graph.indices] if weight is None else x[graph.indices] * weight.unsqueeze(1)
        summed: Tensor = scatter(rows, graph.targets, 0, graph.num_targets, "sum")
        return summed
    if weight is None and x.dtype is not torch.float32:  # the ones of its cache
        weight = x.new_ones(graph.num_edges)
    product: Tensor = _graph(graph).matmul(x, weight, transpose=True)
    return product


def segment_sum(graph: Graph, x: Tensor) -> Tensor:
    from torch_geometric.utils import segment

    summed: Tensor = segment(x, graph.offsets, "sum")
    return summed


def segment_softmax(graph: Graph, x: Tensor) -> Tensor:
    from torch_geometric.utils import softmax

    y: Tensor = softmax(x, ptr=graph.offsets, dim=0)
    return y
