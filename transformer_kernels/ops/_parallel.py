# SPDX-License-Identifier: MIT
"""The ways in which an op may be split between devices, as its declaration lists them.

A way maps tensors to the dimension that is split, counted from the last as 1. Each device computes
its part of the results from its part of the arguments. A tensor that the way does not name is the
same on every device, and so is one that broadcasts: with size 1 in that dimension, or with fewer
dimensions. The gradient of such a tensor is the sum over devices. A number that the way names is
divided between the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ._declare import Op, Way, Ways
from ._declare_arguments import Given, Mask, Param

SUMMED = 0  # marks a result of which each device computes a summand
WHOLE = -1  # marks a result that every device has whole when a `Joint` way has run
ONCE = -2  # marks an argument that is added to one device's summand: zeros on all others

Run = Callable[[Given], tuple[Any, ...]]  # arguments by name -> results


@dataclass(frozen=True)
class Part:
    """A process's part of a dimension that is split between the processes of ``groups``."""

    start: int
    size: int  # of the whole dimension
    groups: tuple[Any, ...]  # a process group for each dimension of the mesh
    backend: str  # of the call

    def sum(self, x: Tensor) -> Tensor:
        """Adds up, in place, what the processes have."""
        return self._reduced(x, torch.distributed.ReduceOp.SUM)

    def largest(self, x: Tensor) -> Tensor:
        """Replaces each element by the largest one of all processes."""
        return self._reduced(x, torch.distributed.ReduceOp.MAX)

    def _reduced(self, x: Tensor, by: Any) -> Tensor:
        for group in self.groups:
            torch.distributed.all_reduce(x, by, group=group)
        return x


class Joint(dict[str, int]):
    """A way whose devices need more than a call of the op on their parts.

    ``run(part, call, given)`` returns a device's results, where ``call`` computes those of the
    arguments ``given``; ``by`` is the tensor whose split dimension ``part`` is of. The ways of
    other dimensions of the mesh run inside ``call`` if the declaration lists them later.
    """

    def __init__(
        self, way: Way, by: str, run: Callable[[Part, Run, Given], tuple[Any, ...]]
    ) -> None:
        super().__init__(way)
        self.by, self.run = by, run


class Summing(Protocol):
    """Processes that can add up what they have."""

    def sum(self, x: Tensor) -> Tensor:
        """Adds up, in place, the processes' tensors."""


class _Total(torch.autograd.Function):
    """A sum over processes, each of which has the whole gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Summing) -> Tensor:
        return processes.sum(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def total(x: Tensor, processes: Summing) -> Tensor:
    """The sum of the processes' tensors, on each of them, with a gradient."""
    found: Tensor = _Total.apply(x, processes)
    return found


def rows(op: Op, given: Given, last: int | None = None) -> Ways:
    """By rows: in every dimension before those that the op runs over, the ``last`` ones."""
    last = op.last_dims(given) if last is None else last
    return [_by_rows(op, dim) for dim in range(last + 1, given[op.names[0]].dim() + 1)]


def elements(op: Op, given: Given) -> Ways:
    """By any dimension: no element needs another. Parameters are split as their columns are."""
    parameters = [a.name for a in op.arguments if isinstance(a, Param)]
    last = _by_rows(op, 1) | dict.fromkeys(parameters, 1)
    return [last, *rows(op, given, 1)]


def _by_rows(op: Op, dim: int) -> dict[str, int]:
    """Splits arguments with the first one's shape, tensors that broadcast to it, and results."""
    way = {a.name: dim for a in op.arguments if a.has_rows or isinstance(a, Mask)}
    of_rows = {a.name: dim - 1 for a in op.arguments if getattr(a, "per_row", False)}
    return {**way, **of_rows, **dict.fromkeys(op.returned, dim)}


def splits(ways: Ways, name: str, dim: int) -> list[Way]:
    """The ways that split a dimension of a tensor."""
    return [way for way in ways if way.get(name) == dim]


def leading(x: Any, last: int = 1) -> range:
    """The dimensions before the ``last`` ones, counted from the last as 1."""
    return range(last + 1, x.dim() + 1)
