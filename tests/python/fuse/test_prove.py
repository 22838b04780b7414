# SPDX-License-Identifier: MIT
"""Proofs hold for all modules, and operations of graphs, that compute the same function."""

from __future__ import annotations

import torch
from torch import nn

from transformer_kernels.fuse import prove
from transformer_kernels.fuse.graph import prove as graph_proofs


def test_proofs_are_told_apart_by_all_that_a_module_has() -> None:
    """Also by attributes and buffers whose names begin as PyTorch's own do."""
    first, same = nn.Linear(3, 3), nn.Linear(3, 3)
    assert prove._signature(first) == prove._signature(same)
    same._scale = 2.0
    assert prove._signature(first) != prove._signature(same)
    buffered = nn.Linear(3, 3)
    buffered.register_buffer("_table", torch.ones(3))
    assert prove._signature(first) != prove._signature(buffered)


class _Shown:
    """A function that is shown as every other of the kind."""

    __name__ = "shown"

    def __call__(self, x):
        return x

    def __repr__(self) -> str:
        return "<function shown at 0x1>"


def test_proofs_of_graphs_are_told_apart_by_their_functions() -> None:
    meanings = []
    for _ in range(2):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        y = graph.call_function(_Shown(), (x,))
        meanings.append(graph_proofs._meaning([y], [x], [y]))
    assert meanings[0][0] == meanings[1][0]
    assert meanings[0] != meanings[1]
