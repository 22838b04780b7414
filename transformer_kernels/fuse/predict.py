# SPDX-License-Identifier: MIT
"""Predicts the times of a site: those of its operations, from the machine's table of operations at
round sizes, and what a call takes beside them.

Both codes run once, and the operations that PyTorch's dispatcher sees are written down, those of
the backward pass and our kernels among them. A size that is not round is interpolated, in
logarithms, between the operation's times at the round ones around it. What a call takes beside its
operations, in Python and in autograd, is that of a call of few rows. The table is filled as
operations are met, and lasts from one process to the next like the times of sites.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .site import Calls, Times
from .table import Table

_LEAST_SIZE, _BITS = 16, 3  # of sizes that are rounded
_MOST_MULTIPLE = 4  # of a size that changes with another one, such as that of packed layers
_SETS = 4  # of operands, of an operation that is timed
_MOST_FREE = 3  # sizes of an operation that are interpolated
_FREE = frozenset((
    "_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "new_empty_strided",
))  # fmt: skip

Run = Callable[[], Any]
Make = Callable[[Callable[..., Any], Calls], Run]


class Layout(NamedTuple):
    """A tensor without its numbers: dimensions lie in memory in the order ``order``; those in
    ``broadcast`` take none."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    broadcast: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        lies = "" if self.order == tuple(range(len(self.shape))) else f" as {self.order}"
        once = f" once {self.broadcast}" if self.broadcast else ""
        return f"{sizes} {str(self.dtype).removeprefix('torch.')}{lies}{once}"

    def made(self, device: torch.device) -> Tensor:
        held = [1 if d in self.broadcast else size for d, size in enumerate(self.shape)]
        memory = torch.empty([held[d] for d in self.order], dtype=self.dtype, device=device)
        memory.fill_(1 if self.dtype.is_floating_point or self.dtype is torch.bool else 0)
        back = [self.order.index(d) for d in range(len(self.order))]
        return memory.permute(back).expand(self.shape)


def _layout(x: Tensor) -> Layout:
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: -strides[d])
    once = tuple(d for d in range(x.dim()) if strides[d] == 0 and x.shape[d] > 1)
    return Layout(tuple(x.shape), tuple(order), once, x.dtype)


class Operation(NamedTuple):
    """A call of the dispatcher; a :class:`Layout` stands in the place of each tensor."""

    function: Any
    args: Any
    kwargs: Any

    def sizes(self) -> list[int]:
        """The sizes that are not round, without multiples of others among them."""
        layouts = [x for x in tree_leaves((self.args, self.kwargs), _is_layout) if _is_layout(x)]
        found: list[int] = []
        for size in sorted({size for layout in layouts for size in layout.shape}):
            if len({*_neighbours(size)}) > 1 and not any(_multiple(size, base) for base in found):
                found.append(size)
        return found[:_MOST_FREE]

    def scaled(self, sizes: dict[int, int]) -> Operation:
        """The operation with other sizes, whose multiples change with them."""

        def other(size: int) -> int:
            base = next((b for b in sizes if b == size or _multiple(size, b)), None)
            return size if base is None else size // base * sizes[base]

        def change(x: Any) -> Any:
            if _is_layout(x):
                return x._replace(shape=tuple(map(other, x.shape)))
            return other(x) if type(x) is int else x

        args, kwargs = tree_map(change, (self.args, self.kwargs), is_leaf=_is_layout)
        return Operation(self.function, args, kwargs)

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.kwargs.items()]
        leaves = tree_leaves(self.args, _is_layout)
        return f"{self.function} {', '.join([*map(str, leaves), *named])}"

    def run(self, device: torch.device) -> Run:
        """A call whose tensors lie elsewhere each time, results too: in a site other operations
        have taken the cache since their last use."""

        def made(x: Any) -> Any:
            return x.made(device) if _is_layout(x) else x

        operands = [
            tree_map(made, (self.args, self.kwargs), is_leaf=_is_layout) for _ in range(_SETS)
        ]
        turns, results = itertools.cycle(operands), deque[Any](maxlen=_SETS)

        def call() -> None:
            args, kwargs = next(turns)
            results.append(self.function(*args, **kwargs))

        return call


def _is_layout(x: Any) -> bool:
    return isinstance(x, Layout)


def _multiple(size: int, base: int) -> bool:
    return size % base == 0 and 1 < size // base <= _MOST_MULTIPLE


class _Operations(TorchDispatchMode):
    """Writes down the operations of what runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not func.is_view and func._schema.name.partition("::")[2] not in _FREE:
            layouts = tree_map(lambda x: _layout(x) if isinstance(x, Tensor) else x, (args, kwargs))
            self.found.append(Operation(func, *layouts))
        return func(*args, **kwargs)


def operations(run: Run) -> list[Operation]:
    """The operations that a call runs, without those that allocate or view memory."""
    with _Operations() as seen:
        run()
    return seen.found


def _neighbours(size: int) -> tuple[int, int]:
    """The round sizes around a size, which are 4, 5, 6 and 7 times a power of two. Small sizes are
    those of heads and batches, and count as round."""
    step = 1 << max(0, size.bit_length() - _BITS)
    below = size // step * step
    return (size, size) if size <= _LEAST_SIZE or below == size else (below, below + step)


class Predictor:
    """Predicts times on one device from its table of operations, which it fills. ``least`` times a
    run, in microseconds."""

    def __init__(self, table: Table, device: torch.device, least: Callable[[Run], float]) -> None:
        self._table, self._device, self._least = table, device, least

    def times(self, site: str, make: Make, calls: Calls, few: Calls) -> Times | None:
        """The times of both codes of a site; None where an operation cannot be timed by itself.

        Args:
            site: names the site and the pass in the table.
            make: makes a run of one of the codes.
            calls: the codes at the size that is predicted.
            few: the codes at few rows.
        """
        try:
            stock = self._sum(make(calls.stock, calls)) + self._beside("stock", site, make, few)
            ours = self._sum(make(calls.ours, calls)) + self._beside("ours", site, make, few)
        except Exception:  # whatever an operation raises on made-up numbers
            return None
        return Times(round(stock, 2), round(ours, 2))

    def _beside(self, code: str, site: str, make: Make, few: Calls) -> float:
        """The time that a call takes beside its operations, in Python and in autograd."""

        def measured() -> float:
            run = make(getattr(few, code), few)
            return max(0.0, self._least(run) - self._sum(run))

        return self._kept(f"{code} beside its operations: {site}", measured)

    def _sum(self, run: Run) -> float:
        return sum(map(self._one, operations(run)))

    def _one(self, operation: Operation) -> float:
        """The time of an operation, between those at the round sizes around its sizes."""
        logarithms = (
            share * math.log(self._round(operation.scaled(corner)))
            for corner, share in _corners(operation.sizes())
        )
        return math.exp(sum(logarithms))

    def _round(self, operation: Operation) -> float:
        def measured() -> float:
            with torch.no_grad():
                return self._least(operation.run(self._device))

        return self._kept(f"operation {operation}", measured)

    def _kept(self, what: str, measured: Callable[[], float]) -> float:
        found = self._table.get(what)
        if found is None:
            found = round(measured(), 3)
            self._table.keep(what, found)
        return float(found)


def _corners(sizes: list[int]) -> Iterator[tuple[dict[int, int], float]]:
    """The round sizes around the sizes, and the share of each in the interpolated logarithm."""
    for ends in itertools.product((0, 1), repeat=len(sizes)):
        corner, share = {}, 1.0
        for size, end in zip(sizes, ends, strict=True):
            below, above = _neighbours(size)
            upper = math.log(size / below) / math.log(above / below)
            corner[size] = (below, above)[end]
            share *= upper if end else 1 - upper
        yield corner, share
