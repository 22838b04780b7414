# SPDX-License-Identifier: MIT
"""CUDA graphs of both passes of a call, which share memory and hand out results that no later
replay overwrites.

What a graph keeps between replays is memory that no other graph of its pool gets: results, saved
tensors and gradients of arguments. What it needs only while it runs is shared. A graph that was
captured later may keep results there, so a graph is replayed only while none of those captured
after it holds results that somebody may still read. A training step replays in the order of the
capture, where this holds by itself.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._cuda_graph import Tape

_users = torch._C._storage_Use_Count


class Outlet:
    """Hands out a result of a graph, and knows whether somebody still holds one.

    The tensors that are handed out have a storage of their own over the graph's memory, whose users
    are counted.
    """

    __slots__ = ("_base", "_idle", "_storage", "static")

    def __init__(self, static: Tensor) -> None:
        self.static = static.detach()
        self._base = torch._C._from_dlpack(torch._C._to_dlpack(self.static))
        self._storage = self._base.untyped_storage()._cdata
        self._idle = _users(self._storage)

    def tensor(self, copy: bool = False) -> Tensor:
        return self._base.clone() if copy else self._base.detach()

    def is_held(self) -> bool:
        return bool(_users(self._storage) > self._idle)


class Pool:
    """The memory that graphs share, and the order in which they were captured."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.order = itertools.count()
        self._replayed: list[Graph] = []  # in the order of capture

    def blocker(self, graph: Graph) -> Graph | None:
        """The graph whose results a replay of this one would overwrite; None where there is
        none."""
        replayed = self._replayed
        while replayed and replayed[-1].index >= graph.index:
            if replayed[-1].is_held():
                return replayed[-1]
            replayed.pop()
        return None

    def replays(self, graph: Graph) -> None:
        self._replayed.append(graph)


class Graph:
    """One pass of a call."""

    def __init__(self, pool: Pool, tape: Tape) -> None:
        self.pool, self.index = pool, next(pool.order)
        self._tape = tape
        self._outlets: list[Outlet] = []
        self.copies = False  # hands out copies, because somebody has kept results for long

    def owned(self) -> list[Tensor]:
        """The memory that holds results until the next replay."""
        return [outlet.static for outlet in self._outlets]

    def is_held(self) -> bool:
        return any(outlet.is_held() for outlet in self._outlets)

    def _replay(self) -> None:
        self._tape.replay()
        self.pool.replays(self)


class Pending:
    """Lives as long as a backward pass may still come."""

    __slots__ = ("__weakref__",)


class Forward(Graph):
    """The forward pass. ``run`` computes results from the static ``inputs``."""

    def __init__(
        self, pool: Pool, tape: Tape, run: Callable[[], list[Tensor]], leaves: list[Tensor]
    ) -> None:
        super().__init__(pool, tape)
        self._run = run
        self.leaves = leaves  # static arguments and parameters that require a gradient
        self._pending: weakref.ref[Pending] | None = None
        self.outs: list[Tensor] = []  # with the graph of autograd that the backward pass follows
        self._outlets = [Outlet(x) for x in tape.record(self._outs)]

    def _outs(self) -> list[Tensor]:
        self.outs = self._run()
        return self.outs

    def is_held(self) -> bool:
        return self.is_pending() or super().is_held()

    def is_pending(self) -> bool:
        return self._pending is not None and self._pending() is not None

    def replay(self) -> list[Tensor]:
        """Computes, and hands out the results."""
        self._replay()
        return [outlet.tensor(self.copies) for outlet in self._outlets]

    def expect(self) -> Pending:
        """Notes that the backward pass is to come, until what is returned is dropped."""
        pending = Pending()
        self._pending = weakref.ref(pending)
        return pending

    def gradients(self, which: Sequence[int], grads: list[Tensor]) -> list[Tensor | None]:
        """The gradients of the leaves from those of some results."""
        outs = [self.outs[i] for i in which]
        return list(torch.autograd.grad(outs, self.leaves, grads, True, allow_unused=True))


class Backward(Graph):
    """The backward pass of a forward graph, for gradients of those results that have one."""

    def __init__(
        self, forward: Forward, tape: Tape, which: Sequence[int], inputs: list[Tensor],
        arguments: int,
    ) -> None:  # fmt: skip
        super().__init__(forward.pool, tape)
        self._forward, self._which = forward, which
        self.inputs = inputs  # static gradients of results
        found = tape.record(self._grads)
        self._outlets = [Outlet(x) for x in found[:arguments] if x is not None]
        self._is_there = [x is not None for x in found[:arguments]]
        lent = [x if x is None else tape.lend(x) for x in found[arguments:]]
        self._parameters = lent

    def _grads(self) -> list[Tensor | None]:
        seen = {x.untyped_storage().data_ptr() for x in self.inputs}
        found: list[Tensor | None] = []
        for x in self._forward.gradients(self._which, self.inputs):
            if x is not None:
                x = x.detach()
                memory = x.untyped_storage().data_ptr()
                if memory in seen or not _is_dense(x):
                    x = x.clone(memory_format=torch.contiguous_format)
                seen.add(x.untyped_storage().data_ptr())
            found.append(x)
        return found

    def replay(self, copy: bool) -> list[Tensor | None]:
        """Computes, and hands out the gradients. Those of parameters are copies: the program keeps
        them from one step to the next."""
        self._replay()
        outlets = iter(self._outlets)
        mine = [
            next(outlets).tensor(copy or self.copies) if there else None for there in self._is_there
        ]
        lent = [x for x in self._parameters if x is not None]
        copies = [torch.empty_like(x) for x in lent]
        if copies:
            torch._foreach_copy_(copies, lent)
        fresh = iter(copies)
        return [*mine, *(None if x is None else next(fresh) for x in self._parameters)]


def _is_dense(x: Tensor) -> bool:
    """Whether it fills its memory, each element once."""
    return x.is_contiguous() or x.numel() * x.itemsize == x.untyped_storage().nbytes()
