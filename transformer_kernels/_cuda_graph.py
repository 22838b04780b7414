# SPDX-License-Identifier: MIT
"""CUDA graphs of functions: recorded once, replayed without work of the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")

_recording = threading.Lock()  # one graph at a time: to begin one waits for the whole device

# Holds something while fused modules run our code for calls of few rows as well. They ask at each
# call, which a function would make longer.
SERVING_FEW: list[None] = []


@contextmanager
def serving_few() -> Iterator[None]:
    """Lets fused modules run our code for calls of few rows as well, while a CUDA graph is
    recorded: it takes the host longer to call, which a graph pays for once."""
    SERVING_FEW.append(None)
    try:
        yield
    finally:
        SERVING_FEW.pop()


class Tape:
    """A CUDA graph of the operations of one function."""

    def __init__(self, device: torch.device, pool: Any, stream: torch.cuda.Stream) -> None:
        self._device, self._pool, self._stream = device, pool, stream
        self._graph = torch.cuda.CUDAGraph()

    def record(self, run: Callable[[], R]) -> R:
        """Captures the function, which does not compute yet; returns its results."""
        generator = torch.cuda.default_generators[self._device.index]
        before = generator.clone_state()
        with _recording, torch.cuda.device(self._device):
            try:
                with torch.cuda.graph(
                    self._graph, pool=self._pool, stream=self._stream,
                    capture_error_mode="thread_local",
                ):  # fmt: skip
                    return run()
            except BaseException:
                # It would stay in capture mode, and each later draw would raise.
                generator.graphsafe_set_state(before)
                raise

    def replay(self) -> None:
        self._graph.replay()

    def lend(self, x: Tensor) -> Tensor:
        """A view of the same memory, which the pool may use for something else from now on."""
        storage = torch._C._construct_storage_from_data_pointer(
            x.data_ptr(),
            x.device,
            int(x.untyped_storage().nbytes() - x.storage_offset() * x.itemsize),
        )
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, 0, x.shape, x.stride())


class Told:
    """Numbers of a device on their way to the host, which may do something else meanwhile.

    Args:
        x: the numbers; they are copied before anything that its stream does later.
    """

    def __init__(self, x: Tensor) -> None:
        self._host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        self._host.copy_(x, non_blocking=True)
        self._event = torch.cuda.Event() if x.is_cuda else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(x.device))

    def read(self) -> Tensor:
        """Waits for the numbers, and for nothing that was asked of the device after them."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def to_device(host: Tensor, x: Tensor) -> None:
    """Copies numbers of the host to a tensor without waiting for the device; ``host`` is not
    changed later."""
    x.copy_(host.pin_memory() if x.is_cuda else host, non_blocking=True)
