# SPDX-License-Identifier: MIT
"""Replays the repeated blocks of a model as CUDA graphs, so that a block costs the host two
launches in a training step instead of its Python.

A block's call is captured after a few like it. It is replayed while everything that its kernels
depend on is as it was then; any other call runs as it would without graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .._torch import has_dispatch_mode, is_eager
from .blocks import blocks
from .few import GIVEN
from .hand import left_with
from .mixin import Mixin, leave
from .patterns.sum_norm import Branch
from .record import Trace
from .replay import EAGER, NOT_SERVED, Call, first_line
from .shared import Graphs
from .site import Refusal, Site
from .situation import Arguments, Snapshot, UnservedError, metadata, modes

NAME = "graphs"
_CALLS_BEFORE = 2  # equal calls that run without a graph: they load kernels and fill caches
_MOST_GRAPHS = 8  # forward passes of a block: each holds its results and saved tensors
_MOST_STATES = 4  # of a block's modules: training and evaluation, for example
_MOST_COUNTED = 256  # kinds of calls of a block

_BEHIND, _READERS = "_tfk_behind", "_tfk_readers"  # of the module that ends a branch

_has_global_hook = torch.nn.modules.module._has_any_global_hook
_watcher = torch._C._autograd._top_saved_tensors_default_hooks


class Graphed(Mixin):
    """The class of a block whose calls are replayed."""

    _tfk_keeps_signature = True
    _tfk_graphs: Runner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        stock = super().forward
        if torch.compiler.is_compiling():
            return stock(*args, **kwargs)
        try:
            result = self._tfk_graphs.run(self, stock, args, kwargs)
        except UnservedError as reason:
            leave(self, NAME, str(reason), runs=EAGER)
            result = NOT_SERVED
        return stock(*args, **kwargs) if result is NOT_SERVED else result


def _require_plain(module: nn.Module, graphs: Graphs) -> None:
    """Raises where something else follows the call, or runs in it."""
    if graphs.refused:
        raise UnservedError(graphs.refused)
    if not is_eager() or has_dispatch_mode() or torch._C._len_torch_function_stack():
        raise UnservedError("a transform or a mode follows its operations")
    if _watcher(True) is not None:
        raise UnservedError("hooks see its saved tensors, as under activation checkpointing")
    if torch._C._current_graph_task_id() != -1:
        raise UnservedError("it runs within a backward pass, as under activation checkpointing")
    if module.training and not torch.is_grad_enabled():
        raise UnservedError("it trains without gradients, as under activation checkpointing")
    if torch.is_anomaly_enabled() or _has_global_hook():
        raise UnservedError("anomaly detection or a hook of all modules is on")
    if "_is_replica" in module.__dict__ or not graphs.is_home():
        raise UnservedError("another thread or stream runs it than the first time")


class _State:
    """The captured calls of a block while its modules are in one state."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.calls: dict[Any, Call] = {}
        self._counts: dict[Any, int] = {}

    def count(self, kind: Any) -> int:
        """How many calls of this kind there were, with this one."""
        seen = self._counts.get(kind, 0) + 1
        if len(self._counts) < _MOST_COUNTED or kind in self._counts:
            self._counts[kind] = seen
        return seen


class Runner:
    """Captures and replays the calls of one block."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self._states: list[_State] = []
        self._refused = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Runner, (self.graphs,)

    def run(
        self, module: nn.Module, stock: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        if self._refused:
            raise UnservedError(self._refused)
        given = Arguments(args, kwargs, Branch)
        if not given.tensors:
            raise UnservedError("it is called without a tensor")
        if self.graphs.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return NOT_SERVED  # the graph of somebody else takes it in
        _require_plain(module, self.graphs)
        state = self._state(module)
        handed = self._handed(state, given)
        shape = (given.form, handed, modes(), metadata(given.tensors))
        key = (shape, self.graphs.addresses(given.tensors))
        call = state.calls.get(key)
        if call is None:
            # The first graph of a shape takes arguments from wherever they come. One call of a
            # block before it that is not replayed sends others: no reason for another graph.
            kind = key if any(other[0] == shape for other in state.calls) else shape
            if state.count(kind) <= _CALLS_BEFORE:
                return NOT_SERVED
            call = self._captured(module, stock, state, shape, key, given)
        return call(given)

    def _state(self, module: nn.Module) -> _State:
        for state in self._states:
            if state.snapshot.holds():
                return state
        if len(self._states) == _MOST_STATES:
            raise UnservedError(
                f"its parameters, attributes or modes have changed {_MOST_STATES} times"
            )
        self._states.append(_State(Snapshot(module, _parts(module))))
        return self._states[-1]

    def _handed(self, state: _State, given: Arguments) -> tuple[tuple[int, int, int], ...]:
        """Results that another block has left with modules of this one: the module's number, and
        the places of its argument and its result."""
        found = []
        for number, part in enumerate(state.snapshot.modules):
            left = left_with(part) if GIVEN in part.__dict__ else None
            pair = None if left is None else left.pair()
            place = None if pair is None else given.find(pair[0])
            if left is not None and place is not None:
                y = left.of(given.tensors[place])
                if y is not None:
                    found.append((number, place, given.place(y)))
        return tuple(found)

    def _captured(
        self, module: nn.Module, stock: Callable[..., Any], state: _State, shape: Any, key: Any,
        given: Arguments,
    ) -> Call:  # fmt: skip
        if sum(len(other.calls) for other in self._states) >= _MOST_GRAPHS:
            raise UnservedError(f"it has {_MOST_GRAPHS} graphs, for other shapes or modes")
        used = (*given.tensors, *state.snapshot.tensors)
        if any(x.device != self.graphs.device for x in used):
            raise UnservedError("its arguments, parameters and buffers are not on one device")
        try:
            call = Call(self.graphs, module, stock, state.snapshot, shape, given)
        except UnservedError as reason:
            self._refused = str(reason)
            raise
        except Exception as error:  # whatever a module of the user's raises
            self._refused = f"it cannot be captured: {first_line(error)}"
            raise UnservedError(self._refused) from error
        state.calls[key] = call
        return call


def _parts(module: nn.Module) -> list[nn.Module]:
    """The modules in a block, the norms behind it whose work it does ahead, and those that read
    such a norm, which decide about its dtype."""
    parts = [part for part in module.modules() if part is not module]
    spaces = [part.__dict__ for part in (module, *parts)]
    links = [space[_BEHIND] for space in spaces if space.get(_BEHIND) is not None]
    links += [link for space in spaces for link in space.get(_READERS, ())]
    return list(dict.fromkeys([*parts, *(link.module for link in links)]))


# ---- in a plan ----------------------------------------------------------------------------------


def find(model: nn.Module, trace: Trace) -> Iterator[Site | Refusal]:
    """The sites of blocks whose calls are replayed, or the reason why there are none."""
    device = next(iter(model.parameters()), torch.empty(0)).device
    if device.type != "cuda":
        yield Refusal("", NAME, f"the model is on {device.type}, graphs are of CUDA")
        return
    graphs, found = Graphs(device), False
    for calls in blocks(model, trace):
        for call in calls:
            found = True
            if "forward" in vars(call.module):
                yield Refusal(call.path, NAME, "its forward was replaced", "fuse before that")
                continue
            yield site(call.path, call.module, graphs)
    if not found:
        yield Refusal("", NAME, "no list of modules of one class is called")


def site(path: str, module: nn.Module, graphs: Graphs) -> Site:
    return Site(
        NAME, path, module, Graphed, {"_tfk_graphs": Runner(graphs)}, function="CUDA graph",
        key=(type(module).__name__,),
    )  # fmt: skip
