# SPDX-License-Identifier: MIT
"""Records one run of a model: the calls of its modules, the operations in each, and which operation
made each value.

The record holds shapes and dtypes of values and the arguments of calls, but no intermediate result.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch import evaluating

# Operations that move or cast a value without computing another.
MOVES = frozenset((
    "__getitem__", "chunk", "contiguous", "detach", "expand", "flatten", "float", "half", "permute",
    "reshape", "split", "squeeze", "to", "transpose", "type", "type_as", "unbind", "unflatten",
    "unsqueeze", "view",
))  # fmt: skip
# Questions about a tensor, which make no value.
_QUESTIONS = frozenset((
    "__get__", "__len__", "dim", "is_complex", "is_contiguous", "is_floating_point", "numel",
    "size", "stride",
))  # fmt: skip
_SPELLINGS = {"__add__": "add", "__iadd__": "add", "__radd__": "add", "__mul__": "mul",
              "__rmul__": "mul", "__imul__": "mul"}  # fmt: skip


class Value(NamedTuple):
    """The metadata of a tensor of the run."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def value_of(x: Any) -> Value:
    return Value(tuple(x.shape), x.dtype, x.device)


@dataclass(eq=False)
class Node:
    """One operation. ``ins`` and ``outs`` are numbers of values; ``path`` names the module whose
    ``forward`` called it."""

    name: str
    args: tuple[Any, ...]  # tensors are left out: None stands in their places
    kwargs: dict[str, Any]
    ins: list[int]
    outs: list[int]
    path: str
    index: int


@dataclass(eq=False)
class Call:
    """One call of a module. Its nodes have the indices ``first`` to ``last - 1``."""

    path: str
    parent: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ins: list[int]
    first: int
    outs: list[int] = field(default_factory=list)
    last: int = 0


def tensors_in(x: Any) -> Iterator[Tensor]:
    """Yields the tensors of a tree of tuples, lists, mappings and Hugging Face's outputs."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for value in x.values():
            yield from tensors_in(value)
    elif isinstance(x, (tuple, list)):
        for value in x:
            yield from tensors_in(value)


def with_items(x: Any, items: Iterable[Any]) -> Any:
    """Makes a tuple or list as ``x`` of other items: a named tuple of a named tuple, and of a class
    of a user's own one with the same attributes."""
    if isinstance(x, list):
        made = copy.copy(x)
        made[:] = items
        return made
    new = [*items]
    try:
        made = tuple.__new__(type(x), new)  # the constructor may take other arguments than items
    except TypeError:  # that of a class in C does not
        return type(x)(new)
    if hasattr(x, "__dict__"):
        vars(made).update(vars(x))
    return made


class Trace:
    """The record of a run."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.calls: list[Call] = []
        self.values: list[Value] = []
        self.maker: dict[int, Node] = {}  # by value
        self.users: dict[int, list[Node]] = {}  # by value
        self.result: Any = None  # of the model
        self.time: tuple[int, int] | None = None  # tokens of a sequence: as recorded, and in use
        self.residual_in_fp32 = True  # whether norms have stock's dtype under autocast
        self.skips_logits = False  # whether the model gets a class that leaves them out
        self._numbers: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # by the tensor's id

    def number(self, x: Tensor, new: bool = False) -> int:
        """The number of a tensor's value; an operation's result is a new one, also in place."""
        known = self._numbers.get(id(x))
        if not new and known is not None and known[0]() is x:
            return known[1]
        self.values.append(value_of(x))
        self._numbers[id(x)] = (weakref.ref(x), len(self.values) - 1)
        return len(self.values) - 1

    def inside(self, call: Call) -> list[Node]:
        """The operations of a call, those of modules in it included."""
        return self.nodes[call.first : call.last]

    def computed(self, call: Call) -> list[Node]:
        """The operations of a call that compute."""
        return [node for node in self.inside(call) if node.name not in MOVES]

    def calls_in(self, call: Call) -> list[Call]:
        """The calls that the module's own ``forward`` makes."""
        return [
            other
            for other in self.calls
            if other.parent == call.path
            and other is not call
            and call.first <= other.first
            and other.last <= call.last
        ]

    def source(self, value: int) -> int:
        """The value that is moved or cast to this one."""
        node = self.maker.get(value)
        while node is not None and node.name in MOVES and node.ins:
            value = node.ins[0]
            node = self.maker.get(value)
        return value

    def length(self, recorded: int, most: int) -> int:
        """The size in use of a dimension that may be the tokens of a sequence, ``most`` at most."""
        if self.time is None or recorded != self.time[0]:
            return recorded
        return max(recorded, min(self.time[1], most))

    def source_node(self, value: int) -> Node | None:
        """The operation that computed the value, before moves and casts."""
        return self.maker.get(self.source(value))


def _name(function: Any) -> str:
    name = getattr(function, "__name__", str(function))
    if name.startswith("__"):
        return _SPELLINGS.get(name, name)
    return name.rstrip("_")


def _without_tensors(x: Any) -> Any:
    if isinstance(x, Tensor):
        return None
    if isinstance(x, (tuple, list)):
        return with_items(x, map(_without_tensors, x))
    return x


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.trace = Trace()
        self.paths = {module: path for path, module in model.named_modules()}
        self.open: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name, trace = _name(func), self.trace
        if name in _QUESTIONS:
            return func(*args, **kwargs)
        given = [*tensors_in(args), *tensors_in(kwargs)]
        ins = [trace.number(x) for x in given]
        out = func(*args, **kwargs)
        results = list(tensors_in(out))
        in_place = getattr(func, "__name__", "").endswith("_") and name not in MOVES
        if not results or (not in_place and any(x is y for x in results for y in given)):
            return out  # a cast or a move that gave back its input
        node = Node(
            name, _without_tensors(args), {k: _without_tensors(v) for k, v in kwargs.items()}, ins,
            [trace.number(x, new=True) for x in results],
            self.open[-1].path if self.open else "", len(trace.nodes),
        )  # fmt: skip
        trace.nodes.append(node)
        for value in node.outs:
            trace.maker[value] = node
        for value in ins:
            trace.users.setdefault(value, []).append(node)
        return out

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ins = [self.trace.number(x) for x in (*tensors_in(args), *tensors_in(kwargs))]
        parent = self.open[-1].path if self.open else ""
        call = Call(
            self.paths[module], parent, module, args, dict(kwargs), ins, len(self.trace.nodes)
        )
        self.open.append(call)
        self.trace.calls.append(call)

    def after(self, *called: Any) -> None:
        call = self.open.pop()
        call.last = len(self.trace.nodes)
        call.outs = [self.trace.number(x) for x in tensors_in(called[-1])]


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Turns evaluation mode on and gradients off inside; restores training flags and random
    numbers.

    PyTorch's encoder layers call their modules here, as they do in training: in evaluation they
    would read the weights past adapters and hooks, which a record cannot see.
    """
    devices = {p.device.index for p in model.parameters() if p.is_cuda}
    with (
        torch.random.fork_rng(devices),
        torch.no_grad(),
        evaluating(model.modules()),
        _without_fast_path(),
    ):
        yield


@contextmanager
def _without_fast_path() -> Iterator[None]:
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def loss_or_results(result: Any) -> Sequence[Any]:
    """Returns the tensors with which a step of training begins its backward pass: the loss of a
    result that has names, or all that the model returns."""
    if isinstance(result, Mapping):
        return [result["loss"]] if "loss" in result else list(result.values())
    return result if isinstance(result, (tuple, list)) else [result]


def record(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Trace:
    """Records ``model(*args, **kwargs)`` in evaluation mode, without gradients.

    Hooks of the model run as usual. Random numbers and training flags are as before afterwards,
    also if the run raises.
    """
    recorder = _Recorder(model)
    with ExitStack() as stack:
        stack.enter_context(as_it_was(model))
        for module in model.modules():
            before: Callable[..., None] = recorder.before
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(recorder.after, with_kwargs=True).remove)
        with recorder:
            recorder.trace.result = model(*args, **kwargs)
    return recorder.trace
