# SPDX-License-Identifier: MIT
"""The passes in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.graph.graph import Graph
from ..ops.pointwise.table import ACTIVATIONS
from ._passes import Passes, Tables

_FORMULAS = {row.name: row.formula for row in ACTIVATIONS}
_GATES = {row.gated: row.formula for row in ACTIVATIONS if row.gated}


def _by_place(weight: Tensor, graph: Graph) -> Tensor:
    """Edge weights in the order of the graph's edges."""
    return weight if graph.order is None else weight[graph.order]


def _reduce(rows: Tensor, groups: Tensor, counts: Tensor, reduce: str) -> Tensor:
    """Reduces rows (E, ...) to (groups, ...); 0 for an empty group."""
    zeros = rows.new_zeros(len(counts), *rows.shape[1:])
    trailing = (1,) * (rows.dim() - 1)
    if reduce == "max":
        index = groups.long().view(-1, *trailing).expand_as(rows)
        return zeros.scatter_reduce(0, index, rows, "amax", include_self=False)
    sums = zeros.index_add(0, groups, rows)
    return sums / counts.clamp(min=1).view(-1, *trailing) if reduce == "mean" else sums


class Stock(Passes):
    def embed(
        self, tokens: Tensor, table: nn.Embedding, positions: nn.Embedding | None, first: int
    ) -> Tensor:
        x: Tensor = table(tokens)
        if positions is None:
            return x
        places = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        return x + positions(places)

    def patches(self, images: Tensor, projection: nn.Conv2d) -> Tensor:
        return projection(images).flatten(2).transpose(1, 2)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p)

    def norm(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x)

    def project_add_norm(
        self, x: Tensor, projection: nn.Linear, residual: Tensor, norm: nn.Module, p: float
    ) -> tuple[Tensor, Tensor]:
        s = residual + F.dropout(projection(x), p)
        return norm(s), s

    def project_activate(self, x: Tensor, projection: nn.Linear, activation: str) -> Tensor:
        y = projection(x)
        if activation in _FORMULAS:
            return _FORMULAS[activation](y)
        gate, up = y.chunk(2, -1)
        return _GATES[activation](gate) * up

    def rotate(self, q: Tensor, k: Tensor, tables: Tables, first: int) -> tuple[Tensor, Tensor]:
        cos, sin = (table[first : first + q.shape[1], None] for table in tables)

        def rotated(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

        return rotated(q), rotated(k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, p: float) -> Tensor:
        queries, keys = q.shape[1], k.shape[1]
        mask = None
        if causal and 1 < queries < keys:  # PyTorch's own causal mask begins at the first key
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, dropout_p=p,
            is_causal=causal and queries == keys, enable_gqa=q.shape[2] != k.shape[2],
        )  # fmt: skip
        return out.transpose(1, 2)

    def gather(self, x: Tensor, graph: Graph, weight: Tensor | None, reduce: str) -> Tensor:
        messages = x[graph.indices]
        if weight is not None:
            messages = messages * _by_place(weight, graph).unsqueeze(-1)
        return _reduce(messages, graph.targets, graph.degrees, reduce)

    def attend_along(self, q: Tensor, k: Tensor, v: Tensor, graph: Graph) -> Tensor:
        sources, targets = graph.indices, graph.targets
        scores = (q[targets] * k[sources]).sum(-1) * q.shape[-1] ** -0.5
        largest = _reduce(scores.detach(), targets, graph.degrees, "max")
        powers = (scores - largest[targets]).exp()
        sums = _reduce(powers, targets, graph.degrees, "sum")
        weights = (powers / sums[targets]).unsqueeze(-1)
        return _reduce(weights * v[sources], targets, graph.degrees, "sum")

    def pool(self, x: Tensor, offsets: Tensor, reduce: str) -> Tensor:
        counts = offsets.diff()
        groups = torch.repeat_interleave(counts, output_size=len(x))
        return _reduce(x, groups, counts, reduce)

    def loss(self, logits: Tensor, targets: Tensor, is_last_use: bool) -> Tensor:  # noqa: ARG002
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
