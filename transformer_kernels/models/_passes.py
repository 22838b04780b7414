# SPDX-License-Identifier: MIT
"""The passes between two matrix products of a model, which its switch replaces.

A model is written once, in terms of these passes. In PyTorch a pass is several operators, in our
library one kernel or two. Both read the parameters from the same modules of :mod:`torch.nn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..ops.graph.graph import Graph

Tables = tuple[Tensor, Tensor]  # cosines and sines, (positions, R / 2)


class Passes(ABC):
    """The passes of a model; ``p`` is the probability of dropout, 0 in evaluation."""

    @abstractmethod
    def embed(
        self, tokens: Tensor, table: nn.Embedding, positions: nn.Embedding | None, first: int
    ) -> Tensor:
        """(B, T) -> (B, T, C): rows of ``table``, plus rows of ``positions`` from number ``first``
        on."""

    @abstractmethod
    def patches(self, images: Tensor, projection: nn.Conv2d) -> Tensor:
        """(B, channels, height, width) -> (B, N, C): a projection of each patch, in row-major
        order."""

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
        """``act(projection(x))``; a gated activation gives ``act(gate) * up``, half as wide."""

    @abstractmethod
    def rotate(self, q: Tensor, k: Tensor, tables: Tables, first: int) -> tuple[Tensor, Tensor]:
        """Rotates q and k by their positions, which begin at ``first``."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, p: float) -> Tensor:
        """Attention of (B, Tq, H, D) to (B, Tk, Hk, D); causal masks align the last query and
        key."""

    @abstractmethod
    def gather(self, x: Tensor, graph: Graph, weight: Tensor | None, reduce: str) -> Tensor:
        """(N, C) -> (N, C): each node's ``"sum"``, ``"mean"`` or ``"max"`` of ``weight[e] *
        x[source of e]`` over its edges e; 0 for a node without edges."""

    @abstractmethod
    def attend_along(self, q: Tensor, k: Tensor, v: Tensor, graph: Graph) -> Tensor:
        """Attention of each node (N, H, D) to the sources of its edges; 0 for a node without
        edges."""

    @abstractmethod
    def pool(self, x: Tensor, offsets: Tensor, reduce: str) -> Tensor:
        """(N, C) -> (G, C): reduces rows ``offsets[i]`` to ``offsets[i + 1] - 1``; 0 for an empty
        group."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor, is_last_use: bool) -> Tensor:
        """Mean cross-entropy; targets of -100 are ignored. The logits may be overwritten if this is
        their last use."""
