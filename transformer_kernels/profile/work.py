# SPDX-License-Identifier: MIT
"""Bytes and operations of the operators that a program calls; those of ours are declared."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Size, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .._library import NAMESPACE
from ..measure import watch
from ..ops._declare_arguments import as_tuple
from ..ops._declare_raw import RAW, Raw
from ..ops._work import Work
from .trace import Event

_RECORDED = ("Input Dims", "Input type", "Concrete Inputs")
_DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16, "long int": torch.int64, "long": torch.int64,
    "int": torch.int32, "short": torch.int16, "signed char": torch.int8,
    "unsigned char": torch.uint8, "bool": torch.bool,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn, "c10::Float8_e5m2": torch.float8_e5m2,
}  # fmt: skip


def _raw(name: str) -> Raw | None:
    """The declaration of a raw op of ours, by its qualified name."""
    namespace, _, short = name.partition("::")
    return RAW.get(short) if namespace == NAMESPACE else None


def is_ours(name: str) -> bool:
    """Whether a qualified name is that of a kernel of ours, and not of an op around one."""
    raw = _raw(name)
    return raw is not None and not raw.composed


def kind_of(name: str) -> str | None:
    """The resource that bounds one of our kernels; None for other operators."""
    raw = _raw(name)
    return None if raw is None else raw.kind


def of_event(event: Event) -> Work | None:
    """The work of a traced call, if shapes and dtypes of its arguments were recorded; None
    otherwise."""
    return _of_signature(event.name, json.dumps([event.arguments.get(key) for key in _RECORDED]))


@lru_cache(maxsize=4096)
def _of_signature(name: str, recorded: str) -> Work | None:
    op: Any = getattr(getattr(torch.ops, NAMESPACE), name.partition("::")[2]).default
    try:
        columns = zip(op._schema.arguments, *json.loads(recorded), strict=True)
        arguments = [_argument(*column) for column in columns]
        with torch.no_grad():
            results = as_tuple(op(*arguments))
    except (KeyError, ValueError, TypeError, RuntimeError):  # not recorded, or of unknown kinds
        return None
    return of_call(op, arguments, results)


def _argument(declared: Any, shape: list[int], dtype: str, text: str) -> Any:
    """A tensor without memory, or a number."""
    if "Tensor" not in str(declared.type):
        return ast.literal_eval(text)
    return None if dtype == "" else torch.empty(shape, dtype=_DTYPES[dtype], device="meta")


def of_call(op: Any, arguments: Any, results: tuple[Any, ...]) -> Work:
    """The work of a raw op's overload, called with these arguments and results."""
    raw = RAW[op._schema.name.partition("::")[2]]
    given = dict(zip((a.name for a in op._schema.arguments), arguments, strict=False))
    names = [r.name for r in op._schema.returns]  # empty for in-place ops
    return raw.work({**given, **dict(zip(names, results if names else (), strict=True))})


def _count_of(func: Any) -> Any:
    """PyTorch's count of an operator's operations; an in-place operator has its counterpart's."""
    packets = [func.overloadpacket]
    if func.namespace == "aten":
        packets.append(getattr(torch.ops.aten, func._opname.removesuffix("_"), None))
    return next((flop_registry[packet] for packet in packets if packet in flop_registry), None)


@dataclass(frozen=True)
class Counted:
    """One call of an operator."""

    name: str  # with its namespace
    shapes: list[Size]  # shapes of the tensors that it reads
    bytes: int
    flops: float


class Counting(TorchDispatchMode):
    """Counts the operators that run while it is entered: ours by their declarations, others by the
    tensors that they read and write and by PyTorch's own count of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Counted] = []

    @property
    def names(self) -> list[str]:
        return [call.name.partition("::")[2] for call in self.calls]

    @property
    def others(self) -> int:
        """The number of calls of operators that are not ours."""
        return sum(not is_ours(call.name) for call in self.calls)

    @property
    def bytes(self) -> int:
        return sum(call.bytes for call in self.calls)

    @property
    def flops(self) -> float:
        return sum(call.flops for call in self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        raw = _raw(name)
        if raw is not None and raw.composed:
            return self._inside(func, args)
        results = func(*args, **(kwargs or {}))
        if raw is not None:
            work = of_call(func, args, as_tuple(results))
            self._add(name, (args, kwargs), work.bytes, work.flops or 0.0)
        elif watch.is_operator(func):
            moved = watch.bytes_of((args, kwargs)) + watch.bytes_of(results)
            count = _count_of(func)
            # PyTorch's counting functions do not accept the dtype that some products are given.
            known = [value for value in args if not isinstance(value, torch.dtype)]
            flops = count(*known, **(kwargs or {}), out_val=results) if count else 0.0
            self._add(name, (args, kwargs), moved, flops)
        return results

    def _inside(self, func: Any, args: Any) -> Any:
        """Calls the op's implementation for the device; the operators inside it are counted in
        turn."""
        device = next(x.device for x in args if isinstance(x, Tensor))
        key = getattr(torch._C.DispatchKey, device.type.upper())
        with self:
            return func.redispatch(torch._C.DispatchKeySet(key), *args)

    def _add(self, name: str, given: Any, moved: int, flops: float) -> None:
        shapes = [value.shape for value in tree_leaves(given) if isinstance(value, Tensor)]
        self.calls.append(Counted(name, shapes, moved, flops))
