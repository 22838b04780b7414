# SPDX-License-Identifier: MIT
"""The calls of a block that are timed and counted, and a stopwatch for its backward pass."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_kernels.levels import Block
from transformer_kernels.measure.timing import Call


class Calls:
    """The calls of one block that are timed and counted."""

    def __init__(self, block: Block, x: Tensor, dy: Tensor) -> None:
        self._block = block
        self._x, self._dy = x, dy
        self._leaf = x.clone().requires_grad_()  # a block in a model passes its gradient on
        self._wanted = [self._leaf, *block.parameters()]
        # A learning rate of 0 does all of the work, and keeps the weights the same at every step.
        self._optimizer = torch.optim.AdamW(block.parameters(), lr=0.0, fused=True)

    def forward(self) -> Tensor:
        with torch.no_grad():
            y: Tensor = self._block(self._x)
            return y

    def graph(self) -> Call:
        """Runs a forward pass, and returns its backward pass as a call."""
        y = self._block(self._leaf)
        return lambda: torch.autograd.grad(y, self._wanted, self._dy)

    def both(self) -> None:
        self.graph()()

    def step(self) -> None:
        self._block(self._leaf).backward(self._dy)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._leaf.grad = None


class BackwardWatch:
    """Times a backward pass per sample, on a graph that a forward pass makes just before."""

    def __init__(self, graph: Callable[[], Call], device: torch.device) -> None:
        self._graph = graph
        self._elapsed = 0.0
        self._events = (
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            if device.type == "cuda"
            else None
        )
        graph()()

    def start(self) -> None:
        backward = self._graph()
        if self._events is not None:
            self._events[0].record()
            backward()
            self._events[1].record()
            return
        begin = time.perf_counter()
        backward()
        self._elapsed = time.perf_counter() - begin

    def microseconds(self) -> float:
        if self._events is None:
            return self._elapsed * 1e6
        begin, end = self._events
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3
