# SPDX-License-Identifier: MIT
"""CUDA graphs of what a test does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


def capture(step: Callable[[], R]) -> tuple[torch.cuda.CUDAGraph, R]:
    """The graph of ``step``, warmed up on a stream of its own, and what each replay writes."""
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
    """That ``step`` never waits for the device, and that a graph of it gives the same bits."""
    expected = step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, captured = capture(step)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
