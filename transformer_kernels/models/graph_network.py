# SPDX-License-Identifier: MIT
"""A network whose nodes send messages along edges, to classify nodes or whole graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentTypeError, ArgumentValueError, as_count, check_indices
from .._names import explain_names
from ..ops.graph.graph import Graph
from ._checks import (
    check_beside,
    check_config,
    check_like,
    check_shape,
    one_of,
)
from ._config import TransformerConfig
from ._messages import Messages, pool
from ._switch import Model
from ._transformer import Transformer, initialise

_MESSAGES = ("sum", "mean", "max", "attention")
_POOLS = ("sum", "mean", "max")


@explain_names
@dataclass(frozen=True, kw_only=True)
class GraphNetworkConfig(TransformerConfig):
    """The configuration of a graph network: :class:`TransformerConfig` and, around the layers:

    Args:
        in_features: F, the number of values that come with a node.
        num_classes: number of classes.
        messages: how a node combines the messages of its edges in each layer: ``"sum"``, ``"mean"``
            or ``"max"`` (Hamilton et al. 2017, arXiv:1706.02216), or ``"attention"`` with
            ``num_heads`` (Shi et al. 2021, arXiv:2009.03509), whose weights are not dropped.
        pool: None to classify nodes; ``"sum"``, ``"mean"`` or ``"max"`` over the nodes of a graph
            to classify graphs.

    >>> tfk.models.GraphNetworkConfig(
    ...     in_features=16, num_classes=2, dim=32, num_layers=2, messages="attention",
    ...     num_heads=4).messages
    'attention'
    """

    in_features: int
    num_classes: int
    num_heads: int = 1
    messages: str = "mean"
    pool: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        op = type(self).__name__
        as_count(op, "in_features", self.in_features)
        as_count(op, "num_classes", self.num_classes)
        one_of(op, "messages", self.messages, _MESSAGES)
        if self.pool is not None:
            one_of(op, "pool", self.pool, _POOLS)
        if self.kv_heads != self.num_heads:
            raise ArgumentValueError(
                f"{op}: num_kv_heads is {self.num_kv_heads}, expected None (edges share no heads)"
            )

    @property
    def mixed(self) -> int:
        return super().mixed if self.messages == "attention" else self.dim


class GraphNetwork(Model):
    """Computes logits of the classes of nodes, or of graphs, from nodes and edges.

    Args:
        config: its configuration.
        kernels: ``"ours"`` for this package's kernels: the layers are fused by
            :func:`transformer_kernels.fuse`, without timing, when the model is made and when this
            is set. Or ``"torch"`` for stock PyTorch. Both have the same parameters, ``state_dict``
            and results; ``model.kernels`` may be set at any time.

    Initial parameters depend on PyTorch's seed alone. A node's own features reach the next layer
    past its messages, so edges from a node to itself are not needed.

    >>> model = tfk.models.GraphNetwork(tfk.models.GraphNetworkConfig(
    ...     in_features=16, num_classes=2, dim=32, num_layers=2))
    >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])  # sources, targets
    >>> graph = tfk.functional.Graph.from_edges(edges, 3)  # once
    >>> loss = model(torch.randn(3, 16), graph, targets=torch.tensor([0, 1, 1]))
    """

    config: GraphNetworkConfig

    def __init__(self, config: GraphNetworkConfig, kernels: str = "ours") -> None:
        super().__init__(kernels)
        check_config("GraphNetwork", config, GraphNetworkConfig)
        self.config = config
        self.embedding = nn.Linear(config.in_features, config.dim)
        self.transformer = Transformer(config, lambda _: Messages(config, config.messages))
        self.head = nn.Linear(config.dim, config.num_classes)
        initialise(self, self.transformer)
        self.kernels = kernels

    def forward(
        self,
        x: Tensor,
        graph: Graph,
        targets: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Returns logits (N, classes), or (G, classes) of graphs; with ``targets`` the mean
        cross-entropy.

        Args:
            x: (N, F), of the weights' dtype.
            graph: the edges between N nodes; several graphs are joined, one after the other.
            targets: int64, (N,) or (G,), the classes; -100 is ignored.
            offsets: (G + 1,), int32 or int64, only to classify graphs: graph i has the nodes
                ``offsets[i]`` to ``offsets[i + 1] - 1``
                (:func:`transformer_kernels.functional.segment_offsets`). By default all nodes are
                one graph.
            weight: (E,), of ``x``'s dtype: a factor of each edge's message, by the edges' numbers.
                Not with attention.

        Raises:
            ArgumentValueError, ArgumentTypeError: the model cannot take an argument; the message
                names it.
        """
        features = self.features(x, graph, offsets=offsets, weight=weight)
        return self._logits_or_loss(features, targets)

    def features(
        self,
        x: Tensor,
        graph: Graph,
        *,
        offsets: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The features that the head classifies, (N, C) or (G, C)."""
        kind, p = self.config.pool, self.transformer.p
        self._check_kernels()
        self._check(x, graph, offsets, weight)
        embedded = self._dropout(self.embedding(x), p)
        y: Tensor = self.transformer(embedded, p, graph, weight)
        if kind is None:
            return y
        if offsets is None:
            offsets = graph.offsets.new_tensor([0, len(y)])
        return pool(y, offsets, kind, self.kernels == "ours")

    def _example(self) -> tuple[Any, ...]:
        x = self._rows(2)  # fuse keeps as many rows of a recorded run, and no node may be missing
        return x, 0.0, Graph.from_edges(torch.tensor([[0, 1], [1, 0]], device=x.device), 2), None

    def _check(self, x: Any, graph: Any, offsets: Any, weight: Any) -> None:
        op, config = "GraphNetwork", self.config
        check_shape(op, "x", x, "nodes", config.in_features)
        check_like(op, "x", x, self.embedding.weight)
        nodes = x.shape[0]
        if not isinstance(graph, Graph):
            raise ArgumentTypeError(
                f"{op}: graph is {type(graph).__name__}, expected a Graph (Graph.from_edges())"
            )
        check_beside(op, "graph", graph.offsets, self.embedding.weight)
        if (graph.num_sources, graph.num_targets) != (nodes, nodes):
            raise ArgumentValueError(
                f"{op}: graph has {graph.num_sources} sources and {graph.num_targets} targets,"
                f" expected {nodes} of both (the nodes of x)"
            )
        if weight is not None:
            if config.messages == "attention":
                raise ArgumentValueError(
                    f"{op}: weight is given, expected none with messages='attention'"
                )
            check_shape(op, "weight", weight, graph.num_edges)
            check_beside(op, "weight", weight, x)
        if offsets is not None:
            self._check_offsets(op, offsets, nodes)

    def _check_offsets(self, op: str, offsets: Any, nodes: int) -> None:
        if self.config.pool is None:
            raise ArgumentValueError(f"{op}: offsets is given, expected none with pool=None")
        check_shape(op, "offsets", offsets, "graphs + 1")
        check_indices(op, "offsets", offsets)
        check_beside(op, "offsets", offsets, self.embedding.weight)
        if not len(offsets):
            raise ArgumentValueError(f"{op}: offsets has 0 elements, expected at least 1")
        if not offsets.is_cpu:
            return
        if offsets[0] != 0 or offsets[-1] != nodes or bool((offsets.diff() < 0).any()):
            raise ArgumentValueError(
                f"{op}: offsets is {offsets.tolist()}, expected numbers that rise from 0 to {nodes}"
                " (the nodes of x)"
            )
