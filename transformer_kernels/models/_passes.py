# SPDX-License-Identifier: MIT
"""What stands between two matrix products of a model: the one thing that its switch changes.

A model is written once, in these passes. PyTorch's are several operators each, ours one kernel or
two. Both read the parameters from the same modules of :mod:`torch.nn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..ops.graph.graph import Graph

Tables = tuple[Tensor, Tensor]  # cosines and sines, (positions, R / 2)


class Passes(ABC):
    """``p`` is the probability of dropout, 0 in evaluation."""

    @abstractmethod
    def embed(
        self, tokens: Tensor, table: nn.Embedding, positions: nn.Embedding | None, first: int
    ) -> Tensor:
        """(B, T) -> (B, T, C): rows of ``table``, plus those of positions from ``first`` on."""

    @abstractmethod
    def patches(self, images: Tensor, projection: nn.Conv2d) -> Tensor:
        """(B, channels, height, width) -> (B, N, C): a projection of each patch, row by row."""

    @abstractmethod
    def dropout(self, x: Tensor, p: float) -> Tensor: ...

    @abstractmethod
    def norm(self, x: Tensor, norm: nn.Module) -> Tensor: ...

    @abstractmethod
    def project_add_norm(
        self, x: Tensor, projection: nn.Linear, residual: Tensor, norm: nn.Module, p: float
    ) -> tuple[Tensor, Tensor]:
        """``(norm(s), s)`` with ``s = residual + dropout(projection(x))``."""

    @abstractmethod
    def project_activate(self, x: Tensor, projection: nn.Linear, activation: str) -> Tensor:
        """``act(projection(x))``; of a gated activation half as wide, ``act(gate) * up``."""

    @abstractmethod
    def rotate(self, q: Tensor, k: Tensor, tables: Tables, first: int) -> tuple[Tensor, Tensor]:
        """Rotary positions from ``first`` on."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, p: float) -> Tensor:
        """(B, Tq, H, D) to (B, Tk, Hk, D); causal: the last query stands beside the last key."""

    @abstractmethod
    def gather(self, x: Tensor, graph: Graph, weight: Tensor | None, reduce: str) -> Tensor:
        """(N, C) -> (N, C): of each node the ``"sum"``, ``"mean"`` or ``"max"`` of what its edges
        bring, ``weight[e] * x[source of e]``; 0 of none."""

    @abstractmethod
    def attend_along(self, q: Tensor, k: Tensor, v: Tensor, graph: Graph) -> Tensor:
        """(N, H, D) of each node to those at the sources of its edges; 0 of none."""

    @abstractmethod
    def pool(self, x: Tensor, offsets: Tensor, reduce: str) -> Tensor:
        """(N, C) -> (G, C): of rows ``offsets[i]`` to ``offsets[i + 1] - 1``; 0 of none."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor, is_last_use: bool) -> Tensor:
        """Mean cross-entropy; targets of -100 count nothing. The logits may be overwritten if this
        is their last use."""
