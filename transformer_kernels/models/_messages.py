# SPDX-License-Identifier: MIT
"""How nodes of a graph see each other: messages along edges, and the pooling of nodes to graphs.

Both are ops of this package, and are written in PyTorch beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import Graph, gather_reduce, graph_attention, segment_reduce
from ._config import TransformerConfig
from ._parts import Heads


def _reduce(rows: Tensor, groups: Tensor, counts: Tensor, reduce: str) -> Tensor:
    """Reduces rows (E, ...) to (groups, ...); 0 for an empty group."""
    zeros = rows.new_zeros(len(counts), *rows.shape[1:])
    trailing = (1,) * (rows.dim() - 1)
    if reduce == "max":
        index = groups.long().view(-1, *trailing).expand_as(rows)
        return zeros.scatter_reduce(0, index, rows, "amax", include_self=False)
    sums = zeros.index_add(0, groups, rows)
    return sums / counts.clamp(min=1).view(-1, *trailing) if reduce == "mean" else sums


def _gather(x: Tensor, graph: Graph, weight: Tensor | None, reduce: str) -> Tensor:
    messages = x[graph.indices]
    if weight is not None:
        by_place = weight if graph.order is None else weight[graph.order]
        messages = messages * by_place.unsqueeze(-1)
    return _reduce(messages, graph.targets, graph.degrees, reduce)


def _attend(q: Tensor, k: Tensor, v: Tensor, graph: Graph) -> Tensor:
    sources, targets = graph.indices, graph.targets
    scores = (q[targets] * k[sources]).sum(-1) * q.shape[-1] ** -0.5
    largest = _reduce(scores.detach(), targets, graph.degrees, "max")
    powers = (scores - largest[targets]).exp()
    sums = _reduce(powers, targets, graph.degrees, "sum")
    weights = (powers / sums[targets]).unsqueeze(-1)
    return _reduce(weights * v[sources], targets, graph.degrees, "sum")


class Messages(Heads):
    """Messages along the edges of a graph, (N, C), from the projection of all nodes: values (N, C),
    or queries, keys and values (N, 3 C) of attention. A node without edges gets 0."""

    def __init__(self, config: TransformerConfig, kind: str) -> None:
        super().__init__(config)
        self.kind = kind

    def forward(self, projected: Tensor, _p: float, graph: Graph, weight: Tensor | None) -> Tensor:
        if self.kind == "attention":
            q, k, v = self.heads(projected)
            attend = graph_attention if self.ours else _attend
            return attend(q, k, v, graph).flatten(1)
        return (gather_reduce if self.ours else _gather)(projected, graph, weight, self.kind)


def pool(x: Tensor, offsets: Tensor, reduce: str, ours: bool) -> Tensor:
    """(N, C) -> (G, C): reduces rows ``offsets[i]`` to ``offsets[i + 1] - 1``; 0 for an empty
    group."""
    if ours:
        return segment_reduce(x, offsets, reduce)
    counts = offsets.diff()
    groups = torch.repeat_interleave(counts, output_size=len(x))
    return _reduce(x, groups, counts, reduce)
