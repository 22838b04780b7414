# SPDX-License-Identifier: MIT
"""DTensors through a declared op: each process runs it on the parts that it holds.

For every dimension of the mesh, the plan takes one of the ways that the declaration lists
(``parallel``), or none: whichever moves the fewest bytes. Arguments are first redistributed to it.
A dimension that may not be split is gathered, and pending sums are reduced. A `Joint` way says
itself how its devices compute results together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError
from .._torch import has_dispatch_mode
from ._declare import Op, Way, Ways
from ._declare_arguments import Given, Seed, as_tuple
from ._kinds import is_distributed
from ._parallel import ONCE, SUMMED, WHOLE, Joint, Part, Run
from ._philox import SeedOfPart

_NONE: Way = {}


def on_shards(
    op: Op,
    given: Given,
    ways: Callable[[], Ways],
    run: Callable[..., Any],
    dims: int | None,
    backend: str,
) -> tuple[Any, ...]:
    """The results of ``run``, which computes on plain tensors by a backend, as DTensors.

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

    # Kernels count elements from 0: a part of a tensor that draws is computed by the formula.
    compute = run if plan.drawn is None else op.formula

    def call(values: Given) -> tuple[Any, ...]:
        return as_tuple(compute(*(values[name] for name in op.names)))

    local = {name: plan.local(name, given[name]) for name in op.names}
    first = given[op.names[0]]
    results = plan.around(call, first.device_mesh, backend)(local)
    return tuple(plan.shared(*pair, first) for pair in zip(op.returned, results, strict=True))


def on_whole(run: Callable[[Tensor], Any], x: Any) -> tuple[Any, ...]:
    """The results of ``run`` on the whole of a DTensor, as DTensors that every process has whole:
    for a raw op, which has no declaration of its own."""
    from torch.distributed.tensor import Replicate

    whole = [Replicate()] * x.device_mesh.ndim
    return tuple(
        type(x).from_local(y, x.device_mesh, whole, run_check=False)
        for y in as_tuple(run(x.full_tensor()))
    )


@dataclass(frozen=True)
class _Plan:
    """How the tensors of a call lie while it runs."""

    arguments: dict[str, tuple[Any, Any]]  # placements of DTensors and of their gradients
    results: dict[str, tuple[Any, torch.Size, tuple[int, ...]]]  # placements, shape, strides
    numbers: dict[str, int]  # a process's own part of numbers
    left_out: frozenset[str]  # arguments that other processes add
    # Ways to compute together: this process's first index, the size, the dimensions of the mesh.
    joints: list[tuple[Joint, int, int, list[int]]]
    # The shape of the first argument, and this process's first indices, if the parts draw numbers.
    drawn: tuple[tuple[int, ...], tuple[int, ...]] | None

    def local(self, name: str, value: Any) -> Any:
        """A process's own part of an argument."""
        if name not in self.arguments:
            return self._other(name, value)
        placements, of_gradient = self.arguments[name]
        there = value.redistribute(placements=placements)
        part = there.to_local(grad_placements=of_gradient)
        if name in self.left_out:  # with a gradient of 0, for processes act together
            return part.masked_fill(torch.ones_like(part, dtype=torch.bool), 0)
        return part

    def _other(self, name: str, value: Any) -> Any:
        """A number, or a seed."""
        if not isinstance(value, Tensor):
            return self.numbers.get(name, value)
        seed: Any = value
        seed = seed.to_local() if is_distributed(seed) else seed
        return seed if self.drawn is None else SeedOfPart(seed, *self.drawn)

    def around(self, call: Run, mesh: Any, backend: str) -> Run:
        """A call of the local arguments, by all ways that were chosen."""
        for joint, start, size, places in reversed(self.joints):
            part = Part(start, size, tuple(mesh.get_group(place) for place in places), backend)
            call = partial(joint.run, part, call)
        return call

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
    for argument, value in zip(op.arguments, given.values(), strict=True):
        if isinstance(argument, Seed):
            key.append(value is None)
        elif is_distributed(value):
            mesh, placements = value.device_mesh, value.placements
            key.append((mesh, placements, value.shape, value.stride(), value.dtype))
        elif isinstance(value, Tensor):
            return None
        else:
            key.append(value)
    return tuple(key)


def _planned(op: Op, given: Given, ways: Ways, like_first: bool) -> _Plan:
    tensors, seeds = _tensors(op, given), _seeds(op, given)
    whole = {**given, **{name: _without_memory(x) for name, x in tensors.items()}}
    whole |= dict.fromkeys(seeds, torch.empty(2, dtype=torch.int64, device="meta"))
    if not all(seed.of_elements for seed in seeds.values()):
        ways = ()  # every device draws the numbers of the whole
    if like_first:
        made = (whole[op.names[0]],) * len(op.returned)
    else:
        made = as_tuple(op.raw.inference(*(whole[name] for name in op.names)))
    results = dict(zip(op.returned, made, strict=True))
    return _Planner(op, given, tensors, results, ways).plan(bool(seeds))


def _seeds(op: Op, given: Given) -> dict[str, Seed]:
    """The seeds of a call that draws numbers."""
    return {a.name: a for a in op.arguments if isinstance(a, Seed) and given[a.name] is not None}


def agreed(seed: Tensor, x: Any) -> Tensor:
    """The seed of numbers for x, of which all devices of a DTensor draw the same: the one that the
    first process of the mesh has drawn."""
    if not is_distributed(x):
        return seed
    mesh, seed = x.device_mesh, seed.to(x.device)
    for place in range(mesh.ndim):
        group = mesh.get_group(place)
        torch.distributed.broadcast(seed, torch.distributed.get_global_rank(group, 0), group)
    return seed


def _tensors(op: Op, given: Given) -> dict[str, Any]:
    """The DTensors of a call, which must have no other tensors but seeds, which are the same
    everywhere."""
    title, first = op.title_of(given), op.names[0]
    found: dict[str, Any] = {}
    for argument in op.arguments:
        name, value = argument.name, given[argument.name]
        if not argument.is_tensor or value is None or isinstance(argument, Seed):
            continue
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
        self, op: Op, given: Given, tensors: dict[str, Any], results: dict[str, Tensor], ways: Ways
    ) -> None:
        from torch.distributed.tensor import Partial, Replicate, Shard

        self._shard, self._replicate, self._partial = Shard, Replicate(), Partial()
        self._tensors, self._results, self._given = tensors, results, given
        self._whole = {**tensors, **results}
        self._mesh = tensors[op.names[0]].device_mesh
        self._all = ways
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
        for name, x in self._whole.items():
            dim = self._dim(way, x, name)
            if dim >= 0:
                sizes.append(x.shape[dim])
            elif name in self._results and way.get(name) not in (SUMMED, WHOLE) and x.numel():
                return False
        devices = math.prod([self._mesh.size(i) for i in (*self._places(way), place)])
        numbers = [self._given[name] for name in self._numbers(way)]
        alike = len({*sizes}) <= 1 and not numbers
        return alike or all(size % devices == 0 for size in (*sizes, *numbers))

    def _places(self, way: Way) -> list[int]:
        """The dimensions of the mesh that have taken a way."""
        return [i for i, other in enumerate(self._ways) if other is way]

    def _numbers(self, way: Way) -> list[str]:
        return [name for name in way if isinstance(self._given.get(name), int)]

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

    def _part(self, joint: Joint) -> tuple[int, int, list[int]]:
        x, places = self._tensors[joint.by], self._places(joint)
        size: int = x.shape[self._dim(joint, x, joint.by)]
        return self._start(size, places), size, places

    def _start(self, size: int, places: list[int]) -> int:
        """The first index of this process's part, as torch.chunk() makes it in one dimension of the
        mesh after another."""
        start, count = 0, size
        for place in places:
            most = -(-count // self._mesh.size(place))
            own = min(most * self._mesh.get_local_rank(place), count)
            start, count = start + own, min(most, count - own)
        return start

    def _drawn(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        name, x = next(iter(self._tensors.items()))
        dims = [self._dim(way, x, name) for way in self._ways]
        if max(dims) < 0:
            return None
        places = [[i for i, dim in enumerate(dims) if dim == each] for each in range(x.dim())]
        first = (self._start(size, of_dim) for size, of_dim in zip(x.shape, places, strict=True))
        return tuple(x.shape), tuple(first)

    def _left_out(self, name: str) -> bool:
        """Whether another process adds the argument."""
        return any(
            way.get(name) == ONCE and self._mesh.get_local_rank(place) > 0
            for place, way in enumerate(self._ways)
        )

    def plan(self, draws: bool) -> _Plan:
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
        numbers = {}
        for way in self._ways:
            for name in self._numbers(way):
                parts = math.prod([self._mesh.size(i) for i in self._places(way)])
                numbers[name] = self._given[name] // parts
        left_out = frozenset(filter(self._left_out, self._tensors))
        joints = [
            (way, *self._part(way))
            for way in self._all
            if isinstance(way, Joint) and self._places(way)
        ]
        drawn = self._drawn() if draws else None
        return _Plan(arguments, results, numbers, left_out, joints, drawn)
