# SPDX-License-Identifier: MIT
"""DTensors through a declared op: each process runs it on the parts that it holds.

For every dimension of the mesh, the plan takes one of the ways that the declaration lists
(``parallel``), or none: whichever moves the fewest bytes. Arguments are first redistributed to it.
A dimension that may not be split is gathered, and pending sums are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError
from .._torch import has_dispatch_mode
from ._declare import Op, Way, Ways
from ._declare_arguments import Given, Seed, as_tuple
from ._kinds import is_distributed
from ._parallel import SUMMED

_NONE: Way = {}


def on_shards(
    op: Op,
    given: Given,
    ways: Callable[[], Ways],
    run: Callable[..., Any],
    dims: int | None,
) -> tuple[Any, ...]:
    """The results of ``run``, which computes on plain tensors, as DTensors.

    A call of ``dims`` dimensions together gives results of the first argument's shape; without, the
    op's fake pass makes them, and checks the arguments as they are before they are split.
    """
    key = _key(op, given, dims)
    plan = None if key is None else _PLANS.get(key)
    if plan is None:
        plan = _planned(op, given, ways(), like_first=dims is not None)
        if key is not None:
            if len(_PLANS) >= _MOST_PLANS:
                _PLANS.clear()
            _PLANS[key] = plan
    results = as_tuple(run(*(plan.local(name, given[name]) for name in op.names)))
    first = given[op.names[0]]
    return tuple(plan.shared(*pair, first) for pair in zip(op.returned, results, strict=True))


@dataclass(frozen=True)
class _Plan:
    """How the tensors of a call lie while it runs."""

    arguments: dict[str, tuple[Any, Any]]  # placements of DTensors and of their gradients
    results: dict[str, tuple[Any, torch.Size, tuple[int, ...]]]  # placements, shape, strides

    def local(self, name: str, value: Any) -> Any:
        """A process's own part of an argument."""
        if name not in self.arguments:
            return value
        placements, of_gradient = self.arguments[name]
        there = value.redistribute(placements=placements)
        return there.to_local(grad_placements=of_gradient)

    def shared(self, name: str, local: Tensor, first: Any) -> Any:
        """Makes a result a DTensor, as the first argument is."""
        placements, shape, stride = self.results[name]
        return type(first).from_local(
            local, first.device_mesh, placements, run_check=False, shape=shape, stride=stride
        )


# Plans of eager calls, by what they follow from: a fake pass and a search take as long as the rest
# of a small call.
_PLANS: dict[Any, _Plan] = {}
_MOST_PLANS = 4096


def _key(op: Op, given: Given, dims: int | None) -> Any:
    """The reasons of a plan; None where sizes may be symbols, or a tensor is not distributed."""
    if torch.compiler.is_compiling() or has_dispatch_mode():
        return None
    key: list[Any] = [op, dims]
    for value in given.values():
        if is_distributed(value):
            mesh, placements = value.device_mesh, value.placements
            key.append((mesh, placements, value.shape, value.stride(), value.dtype))
        elif isinstance(value, Tensor):
            return None
        else:
            key.append(value)
    return tuple(key)


def _planned(op: Op, given: Given, ways: Ways, like_first: bool) -> _Plan:
    tensors = _tensors(op, given)
    whole = {**given, **{name: _without_memory(x) for name, x in tensors.items()}}
    if like_first:
        made = (whole[op.names[0]],) * len(op.returned)
    else:
        made = as_tuple(op.raw.inference(*(whole[name] for name in op.names)))
    return _Planner(op, tensors, dict(zip(op.returned, made, strict=True)), ways).plan()


def _tensors(op: Op, given: Given) -> dict[str, Any]:
    """The DTensors of a call, which must have no other tensors."""
    title, first = op.title_of(given), op.names[0]
    found: dict[str, Any] = {}
    for argument in op.arguments:
        name, value = argument.name, given[argument.name]
        if not argument.is_tensor or value is None:
            continue
        if isinstance(argument, Seed):
            raise ArgumentValueError(
                f"{title}: {argument.draws} is {given[argument.draws]:g}, expected 0 with DTensors"
                " (local_map gives every device a call of its own, with its own seed)"
            )
        if not is_distributed(value):
            like = "other arguments are" if name == first else f"{first} is"
            raise ArgumentTypeError(
                f"{title}: {name} is a {type(value).__name__}, expected a DTensor as {like}"
                " (distribute_tensor() gives it)"
            )
        mesh = found[first].device_mesh if found else value.device_mesh
        if value.device_mesh != mesh:
            raise ArgumentValueError(f"{title}: {name} is on {value.device_mesh}, expected {mesh}")
        found[name] = value
    return found


def _without_memory(x: Any) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


class _Planner:
    """Chooses a way for each dimension of the mesh."""

    def __init__(
        self, op: Op, tensors: dict[str, Any], results: dict[str, Tensor], ways: Ways
    ) -> None:
        from torch.distributed.tensor import Partial, Replicate, Shard

        self._shard, self._replicate, self._partial = Shard, Replicate(), Partial()
        self._tensors, self._results = tensors, results
        self._mesh = tensors[op.names[0]].device_mesh
        self._ways: list[Way] = []
        for place in range(self._mesh.ndim):
            possible = [_NONE, *(way for way in ways if self._is_possible(way, place))]
            # Dynamo, which compiles calls of DTensors, cannot trace `min` with a key.
            costs = [self._moved(way, place) for way in possible]
            self._ways.append(possible[costs.index(min(costs))])

    def _dim(self, way: Way, x: Tensor, name: str) -> int:
        """The dimension of a tensor that is split; -1 where every device has the whole."""
        dim = x.dim() - way.get(name, x.dim() + 1)
        return dim if 0 <= dim < x.dim() and x.shape[dim] != 1 else -1

    def _is_possible(self, way: Way, place: int) -> bool:
        """Whether every device gets part of each result, and split sizes are equal or divide
        evenly."""
        sizes = []
        for name, x in {**self._tensors, **self._results}.items():
            dim = self._dim(way, x, name)
            if dim >= 0:
                sizes.append(x.shape[dim])
            elif name in self._results and way.get(name) != SUMMED and x.numel():
                return False
        taken = [i for i, other in enumerate(self._ways) if other is way]
        devices = math.prod([self._mesh.size(i) for i in (*taken, place)])
        return len({*sizes}) <= 1 or all(size % devices == 0 for size in sizes)

    def _moved(self, way: Way, place: int) -> int:
        """The bytes that have to move to the way's placement."""
        moved = 0
        for name, x in self._tensors.items():
            now, dim = x.placements[place], self._dim(way, x, name)
            fits = type(now) is self._shard and now.dim % x.dim() == dim
            if not now.is_replicate() and not fits:
                moved += x.numel() * x.element_size()
        return moved

    def _placements(self, name: str, x: Tensor, of_gradient: bool = False) -> list[Any]:
        placements: list[Any] = []
        for way in self._ways:
            dim = self._dim(way, x, name)
            summed = of_gradient and way is not _NONE
            if name in self._results:
                summed = way.get(name) == SUMMED
            whole = self._partial if summed else self._replicate
            placements.append(self._shard(dim) if dim >= 0 else whole)
        return placements

    def plan(self) -> _Plan:
        """The placements by the ways that were chosen."""
        arguments = {
            name: (
                self._placements(name, x),
                self._placements(name, x, of_gradient=True) if x.is_floating_point() else None,
            )
            for name, x in self._tensors.items()
        }
        results = {
            name: (self._placements(name, x), x.shape, x.stride())
            for name, x in self._results.items()
        }
        return _Plan(arguments, results)
