# SPDX-License-Identifier: MIT
"""CUDA graphs of what a test does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

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
