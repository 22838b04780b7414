# SPDX-License-Identifier: MIT
"""Captures CUDA graphs of test steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


def capture(step: Callable[[], R]) -> tuple[torch.cuda.CUDAGraph, R]:
    """Captures ``step``, warmed up on a side stream; returns the graph and the results it
    writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    return graph, captured


def check_replay(step: Callable[[], Sequence[Tensor]]) -> None:
    """Checks that ``step`` never waits for the device, and that a graph of it gives the same
    bits."""
    expected = step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, captured = capture(step)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
