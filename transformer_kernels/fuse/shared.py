# SPDX-License-Identifier: MIT
"""The graphs of a model share pools, static arguments, and the thread and stream that replay
them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._cuda_graph import Tape
from .capture import Forward, Graph, Pool


class Buffer:
    """A static argument, and the tensor whose numbers it holds."""

    def __init__(self, like: Tensor) -> None:
        self.static = torch.empty_like(like, requires_grad=False)
        self._source: Callable[[], Tensor | None] = lambda: None
        self._version = -1
        self.filled = -1  # the moment
        self.users: list[Forward] = []

    def is_needed(self) -> bool:
        """Whether a backward pass is still to read what it holds."""
        return any(user.is_pending() for user in self.users)

    def fill(self, x: Tensor, since: int, now: int) -> None:
        """Copies a tensor, unless another block has done it after the moment ``since``."""
        if self.holds(x, since):
            return
        self.static.copy_(x.detach())
        self._source, self.filled = weakref.ref(x), now
        self._version = -1 if x.is_inference() else x._version

    def holds(self, x: Tensor, since: int) -> bool:
        return (
            self.filled > since
            and self._source() is x
            and not x.is_inference()
            and self._version == x._version
        )


class Graphs:
    """Pools, static arguments and the stream of the graphs of a model."""

    tape: Callable[..., Any] = Tape

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.refused = ""  # the reason why nothing more is captured
        self._home: tuple[int, int] | None = None  # the thread and stream that replay
        self._side: Any = None
        self._pools: dict[Any, Pool] = {}
        self._memory: dict[int, Tensor] = {}  # results of graphs, by address
        self._buffers: list[Buffer] = []
        self._now = 0

    def __reduce__(self) -> tuple[Any, ...]:  # a copy of the model captures its own
        return Graphs, (self.device,)

    def tick(self) -> int:
        self._now += 1
        return self._now

    def is_home(self) -> bool:
        here = threading.get_ident(), _stream(self.device)
        if self._home is None:
            self._home = here
        return here == self._home

    def pool(self, key: Any) -> Pool:
        if key not in self._pools:
            handle = torch.cuda.graph_pool_handle() if self.tape is Tape else None
            self._pools[key] = Pool(handle)
        return self._pools[key]

    def side(self) -> Any:
        """The stream of warm-ups and captures."""
        if self._side is None and self.device.type == "cuda":
            self._side = torch.cuda.Stream(self.device)
        return self._side

    def new_tape(self, pool: Pool) -> Any:
        return self.tape(self.device, pool.handle, self.side())

    def owns(self, graph: Graph) -> None:
        self._memory.update((x.data_ptr(), x) for x in graph.owned())

    def addresses(self, tensors: Sequence[Tensor | None]) -> tuple[int | None, ...]:
        """The addresses of tensors that lie in memory of graphs, 0 for others."""
        memory = self._memory
        return tuple([
            None if x is None else at if (at := x.data_ptr()) in memory else 0 for x in tensors
        ])  # fmt: skip

    def same_memory(self, x: Tensor) -> Tensor:
        """The memory of a graph's result, seen as this tensor."""
        owner = self._memory[x.data_ptr()]
        return owner.as_strided(x.shape, x.stride(), owner.storage_offset())

    def buffer(self, x: Tensor, since: int) -> Buffer:
        """A static argument for a tensor: the one that holds it already, or a new one."""
        for buffer in self._buffers:
            if buffer.holds(x, since) and buffer.static.stride() == x.stride():
                return buffer
        self._buffers.append(Buffer(x))
        return self._buffers[-1]


def _stream(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return torch._C._cuda_getCurrentRawStream(device.index)
