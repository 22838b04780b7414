# SPDX-License-Identifier: MIT
"""A block's call as CUDA graphs of both passes: captured from a call, replayed for those like
it."""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .._torch import eager_apply, frees_graph
from .capture import Backward, Forward
from .derive import Link
from .few import GIVEN
from .hand import Given, give, left_with
from .mixin import leave
from .patterns.sum_norm import Branch
from .shared import Buffer, Graphs
from .situation import Arguments, Snapshot, UnservedError, call_with, metadata

NOT_SERVED = object()  # instead of a result: the call runs without a graph
EAGER = "no graph is replayed"  # of a call that runs as it would without graphs
_MOST_BACKWARDS = 2  # graphs of a backward pass, for gradients in other memory or of other results
_CONSTANTS = frozenset((type(None), bool, int, float, str))


class _Results(NamedTuple):
    """How the result of a block is made of new tensors, arguments and constants; and what it leaves
    with modules behind it."""

    spec: Any
    leaves: list[tuple[str, Any]]  # in order
    behind: list[tuple[int, int, int]]  # a module's number, the places of its argument and result


class Call:
    """A call of a block as graphs of both passes."""

    def __init__(
        self, graphs: Graphs, module: nn.Module, stock: Callable[..., Any], snapshot: Snapshot,
        shape: Any, given: Arguments,
    ) -> None:  # fmt: skip
        self._graphs, self._stock = graphs, stock
        self._module, self._snapshot = Link(module), snapshot
        self._form, self._handed, self._modes, _ = shape
        self._since = -1
        self._backwards: dict[Any, Backward | None] = {}
        self._take_in(given.tensors)
        self._parameters = [
            p for p in dict.fromkeys(snapshot.tensors) if isinstance(p, nn.Parameter)
        ]
        trains = torch.is_grad_enabled()
        self._trained = [p for p in self._parameters if trains and p.requires_grad]
        self._twins = {id(p): nn.Parameter(p.data, p.requires_grad) for p in self._parameters}
        # The places of arguments that require a gradient.
        self.needs = [i for i, x in enumerate(given.tensors) if trains and x.requires_grad]
        leaves = [self._inputs[i] for i in self.needs]
        leaves += [self._twins[id(p)] for p in self._trained]
        self._addresses = self._read_addresses()
        pool = graphs.pool((self._modes, module.training, metadata(given.tensors)))
        with self._settled():
            self._warm_up(leaves)
            try:
                self.forward = Forward(pool, graphs.new_tape(pool), self._run, leaves)
            except Exception as error:
                graphs.refused = f"a forward pass cannot be captured: {first_line(error)}"
                raise
        for buffer in self._buffers:
            if buffer is not None:
                buffer.users.append(self.forward)
        graphs.owns(self.forward)
        # The places of results that have a gradient.
        self.differentiable = [i for i, y in enumerate(self.forward.outs) if y.requires_grad]

    def _read_addresses(self) -> list[int]:
        """Where the parameters lie: a library that shards them frees and fetches their memory."""
        return list(map(Tensor.data_ptr, self._twins.values()))

    # ---- arguments ----

    def _take_in(self, tensors: list[Tensor]) -> None:
        """Makes the static arguments: memory of another graph as it is, a buffer for others."""
        addresses = self._graphs.addresses(tensors)
        self._buffers: list[Buffer | None] = [
            None if at else self._graphs.buffer(x, self._since)
            for x, at in zip(tensors, addresses, strict=True)
        ]
        self._fill(tensors)
        self._inputs = [
            (self._graphs.same_memory(x) if buffer is None else buffer.static)
            .data.requires_grad_(x.requires_grad)
            for x, buffer in zip(tensors, self._buffers, strict=True)
        ]  # fmt: skip

    def _fill(self, tensors: list[Tensor]) -> None:
        now = self._graphs.tick()
        for x, buffer in zip(tensors, self._buffers, strict=True):
            if buffer is not None:
                buffer.fill(x, self._since, now)

    # ---- capture ----

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """Casts of weights by autocast are part of a graph, not of autocast's cache."""
        dtype = self._modes[2]
        if not dtype:
            yield
            return
        with torch.autocast("cuda", dtype=dtype, cache_enabled=False):
            yield

    def _warm_up(self, leaves: list[Tensor]) -> None:
        """Runs both passes on the side stream, and finds out what no graph can hold."""
        kept: set[int] = set()

        def pack(x: Tensor) -> Tensor:
            kept.add(x.data_ptr())
            return x

        device, snapshot = self._graphs.device, self._snapshot
        names, drawn, drawn_on_host = snapshot.names(), random_state(device), host_states(device)
        with _on(self._graphs.side()), _drawn_again(device):
            with _unwritten([*self._inputs, *snapshot.buffers]), _no_waiting():
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                    outs = self._run()
                ends = [y for y in outs if y.requires_grad]
                if ends:
                    ones = [torch.ones_like(y) for y in ends]
                    torch.autograd.grad(ends, leaves, ones, allow_unused=True)
            self._draws = drawn != random_state(device)
        if not snapshot.holds() or snapshot.names() != names:
            raise UnservedError("it writes to attributes of its modules")
        if host_states(device) != drawn_on_host:
            raise UnservedError("it draws random numbers on the host")
        # The places of results that the backward pass reads.
        self.kept = [i for i, y in enumerate(outs) if y.data_ptr() in kept]

    def _run(self) -> list[Tensor]:
        """The call on static arguments; the results that are tensors, each once."""
        with _parameters_replaced(self._snapshot.modules, self._twins):
            outs, self._results = self._called(self._inputs)
        _require_new(outs, [*self._inputs, *self._snapshot.tensors], self._graphs.device)
        return outs

    def _called(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], _Results]:
        """The block's own code on these arguments; what lies with its modules stays there."""
        parts = self._snapshot.modules
        before = [left_with(part, pop=True) for part in parts]
        try:
            for number, x, y in self._handed:
                give(parts[number], tensors[x], tensors[y])
            args, kwargs = call_with(self._form, tensors)
            result = self._stock(*args, **kwargs)
            return _collected(result, tensors, [left_with(part, pop=True) for part in parts])
        finally:
            for part, given in zip(parts, before, strict=True):
                left_with(part, pop=True)
                if given is not None:
                    part.__dict__[GIVEN] = given

    # ---- replay ----

    def __call__(self, given: Arguments) -> Any:
        blocker = self.forward.pool.blocker(self.forward)
        if blocker is not None:
            if isinstance(blocker, Forward) and blocker.is_pending():
                raise UnservedError("it runs again before the backward pass of the last call")
            blocker.copies = True  # from the next time on
            return NOT_SERVED
        for x, buffer in zip(given.tensors, self._buffers, strict=True):
            if buffer is not None and not buffer.holds(x, self._since) and buffer.is_needed():
                raise UnservedError("it gets another argument than the block before it")
        self._fill(given.tensors)
        self._since = self._graphs.tick()
        parts = self._snapshot.modules
        for number, _, _ in self._handed:
            left_with(parts[number], pop=True)
        if self.differentiable:
            outs = _apply(self, len(given.tensors), *given.tensors, *self._trained)
        else:
            outs = self.forward.replay()
        for number, place, other in self._results.behind:
            give(parts[number], outs[place], outs[other])
        return self._result(given.tensors, outs)

    def _result(self, tensors: list[Tensor], outs: Sequence[Tensor]) -> Any:
        flat = []
        for kind, held in self._results.leaves:
            if kind == "new":
                place, behind = held
                y = outs[place]
                if behind is not None:
                    y = y.as_subclass(Branch)
                    vars(y).update(behind)
                flat.append(y)
            else:
                flat.append(tensors[held] if kind == "argument" else held)
        return pytree.tree_unflatten(flat, self._results.spec)

    def backward(self, grads: Sequence[Tensor | None], keeps: bool) -> list[Tensor | None]:
        """The gradients of arguments and of trained parameters."""
        which = [i for i in self.differentiable if grads[i] is not None]
        given = [x for i in which if (x := grads[i]) is not None]
        if not given:
            return [None] * len(self.forward.leaves)
        graph = self._backward(tuple(which), given)
        if graph is None:
            return self.forward.gradients(which, given)
        for x, static in zip(given, graph.inputs, strict=True):
            if x.data_ptr() != static.data_ptr():
                static.copy_(x)
        return graph.replay(copy=keeps)

    def _backward(self, which: tuple[int, ...], grads: list[Tensor]) -> Backward | None:
        """The graph for these gradients; None where autograd has to follow the captured
        operations."""
        if any(type(x) is not Tensor for x in grads) or self._addresses != self._read_addresses():
            return None
        key = (which, self._graphs.addresses(grads), metadata(grads))
        if key not in self._backwards:
            if len(self._backwards) >= _MOST_BACKWARDS:
                return None
            self._backwards[key] = self._capture_backward(which, grads)
        graph = self._backwards[key]
        if graph is None:
            return None
        blocker = graph.pool.blocker(graph)
        if blocker is None:
            return graph
        blocker.copies = True
        return None

    def _capture_backward(self, which: tuple[int, ...], grads: list[Tensor]) -> Backward | None:
        inputs = [
            self._graphs.same_memory(x) if at else torch.empty_like(x)
            for x, at in zip(grads, self._graphs.addresses(grads), strict=True)
        ]
        tape = self._graphs.new_tape(self.forward.pool)
        try:
            graph = Backward(self.forward, tape, which, inputs, len(self.needs))
        except Exception as error:
            self._graphs.refused = f"a backward pass cannot be captured: {first_line(error)}"
            return None
        self._graphs.owns(graph)
        return graph

    def again(
        self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients with a graph of their own, from a second run of the block.

        Raises:
            RuntimeError: the block draws random numbers, or is no longer as it was.
        """
        if self._draws or not self._snapshot.holds():
            raise RuntimeError(
                "fuse: create_graph is True for a block that was replayed as a CUDA graph and draws"
                " random numbers or has changed since, expected False (or fuse without graphs)"
            )
        leave(self._module.module, "graphs", "gradients of gradients", runs=EAGER)
        with self._settled():
            outs, _ = self._called(tensors)
        which = [i for i in self.differentiable if grads[i] is not None]
        leaves = [*(tensors[i] for i in self.needs), *self._trained]
        ends, given = [outs[i] for i in which], [grads[i] for i in which]
        return list(torch.autograd.grad(ends, leaves, given, create_graph=True, allow_unused=True))


def _collected(
    result: Any, tensors: Sequence[Tensor], left: Sequence[Given | None]
) -> tuple[list[Tensor], _Results]:
    """The new tensors of a result, each once, with what was left for modules behind the block."""
    flat, spec = pytree.tree_flatten(result)
    arguments = {id(x): i for i, x in enumerate(tensors)}
    outs: list[Tensor] = []
    places: dict[int, int] = {}
    leaves: list[tuple[str, Any]] = []
    for leaf in flat:
        if not isinstance(leaf, Tensor):
            if type(leaf) not in _CONSTANTS:
                raise UnservedError(f"it returns a {type(leaf).__name__}")
            leaves.append(("constant", leaf))
        elif id(leaf) in arguments:
            leaves.append(("argument", arguments[id(leaf)]))
        else:
            behind = dict(vars(leaf)) if type(leaf) is Branch else None
            if id(leaf) not in places:
                places[id(leaf)] = len(outs)
                outs.append(leaf if behind is None else leaf.as_subclass(Tensor))
            leaves.append(("new", (places[id(leaf)], behind)))
    handed = []
    for number, given in enumerate(left):
        pair = None if given is None else given.pair()
        if pair is not None and id(pair[0]) in places:
            handed.append((number, places[id(pair[0])], len(outs)))
            outs.append(pair[1])
    return outs, _Results(spec, leaves, handed)


def _require_new(outs: list[Tensor], taken: list[Tensor], device: torch.device) -> None:
    memory = {x.untyped_storage().data_ptr() for x in taken}
    for y in outs:
        if type(y) is not Tensor or y.device != device:
            raise UnservedError("a result is no plain tensor on the device of the arguments")
        if y.untyped_storage().data_ptr() in memory:
            raise UnservedError("it returns a view of an argument, parameter or buffer")
    if not outs:
        raise UnservedError("it returns no new tensor")


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, count: int, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        outs = call.forward.replay()
        if len(call.differentiable) < len(outs):
            others = (y for i, y in enumerate(outs) if i not in call.differentiable)
            ctx.mark_non_differentiable(*others)
        ctx.save_for_backward(*tensors, *(outs[i] for i in call.kept))
        ctx.call, ctx.count, ctx.pending = call, count, call.forward.expect()
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        call: Call = ctx.call
        saved = ctx.saved_tensors  # raises where one was written to since, or is gone
        keeps = not frees_graph()
        if torch.is_grad_enabled():
            found = call.again(saved[: ctx.count], grads)
        else:
            found = call.backward(grads, keeps)
        if not keeps:
            ctx.pending = None
        arguments: list[Tensor | None] = [None] * ctx.count
        for place, gradient in zip(call.needs, found, strict=False):
            arguments[place] = gradient
        return None, None, *arguments, *found[len(call.needs) :]


_apply = eager_apply(_Replay)


def first_line(error: Exception) -> str:
    text = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:200]}"


# ---- around a capture ---------------------------------------------------------------------------


@contextlib.contextmanager
def _unwritten(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Raises where a tensor is written to, after its numbers are what they were."""
    before = [(x, x._version, x.clone()) for x in tensors if not x.is_inference()]
    try:
        yield
    finally:
        written = [(x, numbers) for x, version, numbers in before if x._version != version]
        with torch.no_grad():
            for x, numbers in written:
                x.copy_(numbers)
    if written:
        raise UnservedError("it writes to its arguments or buffers")


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Runs on another stream, after and before what runs on the current one."""
    if stream is None:
        yield
        return
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:  # what was restored after an error is on that stream too
        here.wait_stream(stream)


def random_state(device: torch.device) -> bytes:
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return bytes(state.numpy())


def host_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the generators from which no graph can draw."""
    numpy = sys.modules.get("numpy")
    return (
        random.getstate(),
        None if numpy is None else pickle.dumps(numpy.random.get_state()),
        None if device.type == "cpu" else random_state(torch.device("cpu")),
    )


def _drawn_again(device: torch.device) -> Any:
    """Restores random numbers, which a warm-up draws in vain."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Raises where the host waits for the device, as a capture would."""
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def _parameters_replaced(
    parts: Sequence[nn.Module], twins: dict[int, nn.Parameter]
) -> Iterator[None]:
    """Gives modules other parameter objects over the same memory: no hook of theirs runs, and their
    versions do not follow the optimizer's."""
    spaces = [part._parameters for part in parts]
    before = [dict(space) for space in spaces]
    try:
        for space in spaces:
            space.update({name: twins[id(p)] for name, p in space.items() if p is not None})
        yield
    finally:
        for space, own in zip(spaces, before, strict=True):
            space.update(own)
