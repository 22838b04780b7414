# SPDX-License-Identifier: MIT
"""Bytes and operations of a call of our ops, by their declarations.

A call moves each of its tensors once; of a table of which rows are looked up, as much as is looked
up.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
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
from ..ops._declare import Op
from ..ops._declare_arguments import Table, as_tuple
from ..ops._register import DECLARED
from ..ops.linear._arguments import numbers_a_row
from .trace import Event

_RECORDED = ("Input Dims", "Input type", "Concrete Inputs")
_PASSES = {"forward": "forward", "inference": "forward", "backward": "backward"}
# Raw ops that no declaration has: the operand whose rows are multiplied, and with what.
_UNDECLARED_PRODUCTS = {
    "linear_algorithm_forward": ("x", ["weight"]),
    "linear_dact": ("dy", ["weight"]),
    "linear_dgated": ("dy", ["weight"]),
    "gated_linear_forward": ("x", ["weight", "up_weight"]),
}
_DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16, "long int": torch.int64, "long": torch.int64,
    "int": torch.int32, "short": torch.int16, "signed char": torch.int8,
    "unsigned char": torch.uint8, "bool": torch.bool,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn, "c10::Float8_e5m2": torch.float8_e5m2,
}  # fmt: skip

Given = Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """Bytes read and written at least, and operations where the benchmark counts them."""

    bytes: int | None
    flops: float | None = None


def is_ours(name: str) -> bool:
    """Whether a qualified name is that of a kernel of ours, and not of an op around one."""
    namespace, _, short = name.partition("::")
    around = short in DECLARED or _is_composed(name)
    return namespace == NAMESPACE and bool(short) and not around


def _is_composed(name: str) -> bool:
    """Whether a qualified name is that of a raw op of ours that is made of other operators."""
    namespace, _, short = name.partition("::")
    raw_of = DECLARED.get(short.rpartition("_")[0])
    return namespace == NAMESPACE and raw_of is not None and raw_of.composed is not None


def of_event(event: Event) -> Work:
    """Of a traced call, whose arguments' shapes and dtypes were recorded."""
    return _of_signature(event.name, json.dumps([event.arguments.get(key) for key in _RECORDED]))


@lru_cache(maxsize=4096)
def _of_signature(name: str, recorded: str) -> Work:
    op: Any = getattr(getattr(torch.ops, NAMESPACE), name.partition("::")[2]).default
    try:
        columns = zip(op._schema.arguments, *json.loads(recorded), strict=True)
        arguments = [_argument(*column) for column in columns]
        with torch.no_grad():
            results = as_tuple(op(*arguments))
    except (KeyError, ValueError, TypeError, RuntimeError):  # not recorded, or of unknown kinds
        return Work(None)
    return of_call(op, arguments, results)


def _argument(declared: Any, shape: list[int], dtype: str, text: str) -> Any:
    """A tensor without memory, or a number."""
    if "Tensor" not in str(declared.type):
        return ast.literal_eval(text)
    return None if dtype == "" else torch.empty(shape, dtype=_DTYPES[dtype], device="meta")


def of_call(op: Any, arguments: Any, results: tuple[Any, ...]) -> Work:
    """Of a raw op's overload with its arguments and results."""
    given = dict(zip((a.name for a in op._schema.arguments), arguments, strict=False))
    names = [r.name for r in op._schema.returns]  # none of what works in place
    gave = dict(zip(names, results if names else (), strict=True))
    short = op._schema.name.partition("::")[2]
    name, _, suffix = short.rpartition("_")
    declared, pass_ = DECLARED.get(name), _PASSES.get(suffix)
    if declared is None or pass_ is None:
        factors = _UNDECLARED_PRODUCTS.get(short)
        flops = None if factors is None else _flops_of_product(given, *factors)
        return Work(_bytes_of(given) + _bytes_of(gave), flops)
    count = _FLOPS.get(declared.name)
    moved = _declared_bytes(declared, pass_, given, gave)
    return Work(moved, None if count is None else count(pass_, given) or None)


def _flops_of_product(given: Given, left: str, weights: Sequence[str]) -> float:
    """Of the rows of one operand with all of the weights that are there."""
    rows = given[left].numel() // max(given[left].shape[-1], 1)
    return 2.0 * rows * sum(given[name].numel() for name in weights if given[name] is not None)


def _tensors(named: Given) -> dict[str, Tensor]:
    return {n: x for n, x in named.items() if isinstance(x, Tensor) and x.numel()}


def _bytes_of(named: Given) -> int:
    return sum(min(x.nbytes, _memory(x)) for x in _tensors(named).values())


def _memory(x: Tensor) -> int:
    """An expanded tensor is no larger than its memory."""
    return x.untyped_storage().nbytes()


def _declared_bytes(declared: Op, pass_: str, given: Given, gave: Given) -> int:
    if pass_ == "backward":
        return _bytes_of(given) + _bytes_of(gave)
    results = {name: x for name, x in gave.items() if name not in declared.saved}
    tables = [argument.name for argument in declared.arguments if isinstance(argument, Table)]
    written = _bytes_of(results)
    read = _bytes_of({name: x for name, x in given.items() if name not in tables})
    looked_up = [min(x.nbytes, written) for n, x in _tensors(given).items() if n in tables]
    return read + sum(looked_up) + written


def _flops_of_layer(pass_: str, given: Given) -> float:
    """The backward pass has a product for each gradient that is asked for."""
    products = 1 if pass_ == "forward" else given["need_dx"] + given["need_dweight"]
    return 2.0 * given["x"].numel() * len(given["weight"]) * products


def _flops_of_packed_layer(pass_: str, given: Given) -> float:
    """One product in either pass."""
    packed, operand = given["packed"], given["x" if pass_ == "forward" else "dy"]
    rows = operand.numel() // max(operand.shape[-1], 1)
    return 2.0 * rows * len(packed) * numbers_a_row(packed)


def _flops_of_attention(pass_: str, given: Given) -> float | None:
    """Two products of each query and key forward, five backward; None where some are hidden
    otherwise than by ``causal``."""
    q, k, v = (given[name] for name in ("q", "k", "v"))
    windows = {(-1, -1): 1.0, (-1, 0): 0.5}
    share = windows.get((given["window_left"], given["window_right"]))
    hides = any(given[name] is not None for name in ("mask", "cu_seqlens_q", "cu_seqlens_k"))
    fits = q.dim() == 4 and q.shape[1] == k.shape[1] and q.shape[3] == v.shape[3]
    if share is None or hides or not fits:
        return None
    batch, time, heads, dim = q.shape
    products = 2.0 if pass_ == "forward" else 5.0
    return products * 2.0 * batch * time * time * heads * dim * share


_FLOPS: dict[str, Callable[[str, Given], float | None]] = {
    "linear": _flops_of_layer, "linear_act": _flops_of_layer,
    "quantized_linear": _flops_of_packed_layer, "attention": _flops_of_attention,
}  # fmt: skip


def _count_of(func: Any) -> Any:
    """PyTorch's count of an operator's operations, or of the one that it is in place of."""
    packets = [func.overloadpacket]
    if func.namespace == "aten":
        packets.append(getattr(torch.ops.aten, func._opname.removesuffix("_"), None))
    return next((flop_registry[packet] for packet in packets if packet in flop_registry), None)


@dataclass(frozen=True)
class Counted:
    """A call of an operator."""

    name: str  # with its namespace
    shapes: list[Size]  # of the tensors that it reads
    bytes: int
    flops: float


class Counting(TorchDispatchMode):
    """Counts all operators that run while it is entered: ours by their declarations, others by
    the tensors that they read and write, and by PyTorch's own count of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Counted] = []

    @property
    def names(self) -> list[str]:
        return [call.name.partition("::")[2] for call in self.calls]

    @property
    def others(self) -> int:
        """Operators that are not ours."""
        return sum(not is_ours(call.name) for call in self.calls)

    @property
    def bytes(self) -> int:
        return sum(call.bytes for call in self.calls)

    @property
    def flops(self) -> float:
        return sum(call.flops for call in self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if _is_composed(name):
            return self._inside(func, args)
        results = func(*args, **(kwargs or {}))
        if is_ours(name):
            work = of_call(func, args, as_tuple(results))
            self._add(name, (args, kwargs), work.bytes or 0, work.flops or 0.0)
        elif watch.is_operator(func):
            moved = watch.bytes_of((args, kwargs)) + watch.bytes_of(results)
            count = _count_of(func)
            # PyTorch's counts know of no dtype that a product is asked for.
            known = [value for value in args if not isinstance(value, torch.dtype)]
            flops = count(*known, **(kwargs or {}), out_val=results) if count else 0.0
            self._add(name, (args, kwargs), moved, flops)
        return results

    def _inside(self, func: Any, args: Any) -> Any:
        """The op's implementation for the device, whose operators come here again."""
        device = next(x.device for x in args if isinstance(x, Tensor))
        key = getattr(torch._C.DispatchKey, device.type.upper())
        with self:
            return func.redispatch(torch._C.DispatchKeySet(key), *args)

    def _add(self, name: str, given: Any, moved: int, flops: float) -> None:
        shapes = [value.shape for value in tree_leaves(given) if isinstance(value, Tensor)]
        self.calls.append(Counted(name, shapes, moved, flops))
