# SPDX-License-Identifier: MIT
"""Memory by op: the bytes that each of our ops allocates, and saves for its backward pass.

Each storage is counted once, when an operator returns it, and as long as it lives. On a CPU this is
exact, except for scratch memory that a kernel frees before it returns. On a GPU the figures are the
bytes that were asked for; PyTorch's allocator rounds each block up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .._errors import ArgumentTypeError
from .._library import NAMESPACE

OTHERS = "PyTorch"  # owns everything that no op of ours allocates or saves

_PASSES = ("_forward", "_inference", "_backward")


@dataclass
class OpMemory:
    """The memory of one op, in bytes."""

    op: str
    calls: int = 0  # forward passes
    forward: int = 0  # allocated by the forward pass
    backward: int = 0
    saved: int = 0  # saved for the backward pass and by no op before; without parameters


@dataclass
class MemoryAccount:
    """The memory that was allocated and saved inside ``account_memory()``."""

    ops: dict[str, OpMemory] = field(default_factory=dict)  # in the order of their first calls
    live_bytes: int = 0  # allocated since it began and not yet freed
    peak_bytes: int = 0  # the most that was live at one time

    @property
    def allocated_bytes(self) -> int:
        return sum(op.forward + op.backward for op in self.ops.values())

    @property
    def saved_bytes(self) -> int:
        return sum(op.saved for op in self.ops.values())

    @property
    def ours(self) -> dict[str, OpMemory]:
        """The ops of ours, without PyTorch's."""
        return {name: op for name, op in self.ops.items() if name != OTHERS}

    def records(self) -> list[dict[str, Any]]:
        """One dict per op, which ``pandas.DataFrame`` accepts."""
        return [asdict(op) for op in self.ops.values()]

    def of(self, op: str) -> OpMemory:
        return self.ops.setdefault(op, OpMemory(op))

    def __str__(self) -> str:
        lines = [f"{'op':<24}{'calls':>8}{'forward':>14}{'backward':>14}{'saved':>14}"]
        lines += [
            f"{op.op:<24}{op.calls or '':>8}{op.forward:>14,}{op.backward:>14,}{op.saved:>14,}"
            for op in [*self.ours.values(), *([self.ops[OTHERS]] if OTHERS in self.ops else [])]
        ]
        lines.append(f"bytes; at peak {self.peak_bytes:,}, live at the end {self.live_bytes:,}")
        return "\n".join(lines)


class account_memory:  # noqa: N801  # entered as a function is called
    """Accounts for the memory of the code inside, in this thread and in its backward passes.

    A kernel of your own (:class:`Kernel`) counts among ours, by its name. Code that torch.compile
    compiled calls no operators and is not seen.

    Args:
        model: its parameters and buffers do not count as saved; without it, leaves that require a
            gradient do not count.

    >>> model = tfk.nn.MLP(64, 256)
    >>> with tfk.workbench.account_memory(model) as account:
    ...     model(torch.randn(8, 64)).sum().backward()
    >>> account.saved_bytes > 0
    True
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        if not isinstance(model, (nn.Module, type(None))):
            raise ArgumentTypeError(
                f"account_memory: model is {type(model).__name__}, expected an nn.Module"
            )
        self._tracker = _Tracker(model)
        self._stack = ExitStack()

    def __enter__(self) -> MemoryAccount:
        with ExitStack() as entering:
            entering.enter_context(saved_tensors_hooks(self._tracker.save, lambda x: x))
            entering.enter_context(_Operators(self._tracker))
            entering.enter_context(_Functions(self._tracker))
            self._stack = entering.pop_all()
        return self._tracker.account

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._tracker.forget()


@dataclass
class _Call:
    """One call of a public function, and what is known about it so far."""

    op: str | None = None  # name of our op, once its kernel has run
    forward: int = 0
    saved: int = 0


class _Tracker:
    def __init__(self, model: nn.Module | None) -> None:
        self.account = MemoryAccount()
        self._calls: list[_Call] = []
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._kept: dict[int, weakref.ref[Any]] = {}
        self._owned = [] if model is None else [*model.parameters(), *model.buffers()]
        self._parameters = {key for x in self._owned if (key := _key(x)) is not None}
        self._knows_parameters = model is not None

    # ---- events ---------------------------------------------------------------------------------

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a public function, ours or PyTorch's."""
        self._calls.append(_Call())
        try:
            return function()
        finally:
            done = self._calls.pop()
            outer = self._calls[-1] if self._calls else None
            if outer is not None and done.op is None:
                outer.forward += done.forward
                outer.saved += done.saved
            elif done.forward or done.saved or done.op is not None:
                row = self.account.of(done.op or OTHERS)
                row.forward += done.forward
                row.saved += done.saved

    def operator(self, op: str | None, pass_: str, arguments: Any, results: Any) -> None:
        """Records an operator that has run; ``op`` is its name if it is ours."""
        current = self._calls[-1] if self._calls else None
        if op is not None and pass_ != "_backward":
            self.account.of(op).calls += 1
            if current is not None:
                current.op = op
        before = {_key(x) for x in tree_leaves(arguments) if isinstance(x, Tensor)}
        fresh = [x for x in tree_leaves(results) if isinstance(x, Tensor) and _key(x) not in before]
        allocated = sum(map(self._hold, fresh))
        if current is not None and pass_ != "_backward":
            current.forward += allocated
        elif op is not None and pass_ != "_backward":
            self.account.of(op).forward += allocated
        elif allocated or op is not None:  # outside of functions: a backward pass
            self.account.of(op or OTHERS).backward += allocated

    def save(self, x: Tensor) -> Tensor:
        """Records that a tensor is saved for a backward pass."""
        key = _key(x)
        if key is None or key in self._kept or self._is_parameter(x, key):
            return x
        storage = x.untyped_storage()
        self._kept[key] = weakref.ref(storage, lambda _: self._kept.pop(key, None))
        if self._calls:
            self._calls[-1].saved += storage.nbytes()
        else:
            self.account.of(OTHERS).saved += storage.nbytes()
        return x

    def forget(self) -> None:
        """Drops all storages: what is freed later is not counted."""
        self._live.clear()
        self._kept.clear()
        self._owned.clear()

    # ---- storages -------------------------------------------------------------------------------

    def _is_parameter(self, x: Tensor, key: int) -> bool:
        if self._knows_parameters:
            return key in self._parameters
        return x.is_leaf and x.requires_grad

    def _hold(self, x: Tensor) -> int:
        """The bytes of a tensor's storage if it is new, which are live until it is freed; else
        0."""
        key = _key(x)
        if key is None or key in self._live:
            return 0
        storage = x.untyped_storage()
        nbytes = storage.nbytes()
        self._live[key] = (weakref.ref(storage, lambda _: self._free(key)), nbytes)
        account = self.account
        account.live_bytes += nbytes
        account.peak_bytes = max(account.peak_bytes, account.live_bytes)
        return nbytes

    def _free(self, key: int) -> None:
        held = self._live.pop(key, None)
        if held is not None:
            self.account.live_bytes -= held[1]


def _key(x: Tensor) -> int | None:
    """Identifies a tensor's storage; None where it has none, such as a sparse tensor."""
    try:
        return int(x.untyped_storage()._cdata)
    except NotImplementedError:
        return None


class _Functions(TorchFunctionMode):
    """Tells the tracker where a public function begins and ends."""

    def __init__(self, tracker: _Tracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.backward, torch.autograd.grad):  # what they run belongs to other calls
            return func(*args, **(kwargs or {}))
        return self._tracker.call(lambda: func(*args, **(kwargs or {})))


class _Operators(TorchDispatchMode):
    def __init__(self, tracker: _Tracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        namespace, _, name = func._schema.name.partition("::")
        pass_ = next((p for p in _PASSES if name.endswith(p)), "")
        op = name.removesuffix(pass_) if namespace.startswith(NAMESPACE) else None
        self._tracker.operator(op, pass_, (args, kwargs), results)
        return results
