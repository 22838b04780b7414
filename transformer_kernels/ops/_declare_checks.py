# SPDX-License-Identifier: MIT
"""Converts a declared op's arguments to its schema's types, and makes C++'s checks of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    check_indices,
    check_known,
    is_ours,
    translate,
)
from .._library import direct
from .._metadata import check_call, is_checked
from .._torch import any_autocast, has_dispatch_mode, has_undecided_sizes, is_eager
from ._constants import as_saved
from ._declare import Op
from ._declare_arguments import Given, Indices, check_device
from ._kinds import PLAIN_CLASSES, is_distributed, is_jagged, is_plain, require_memory
from ._promote import promoted


def as_declared(op: Op, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Converts arguments to the types of their schema; raises for tensors without readable rows."""
    title = op.title_of(op.given(arguments))
    pairs = zip(op.arguments, arguments, strict=True)
    declared = tuple(argument.as_declared(title, value) for argument, value in pairs)
    rows = [argument.name for argument in op.arguments if argument.has_rows]
    jagged = rows if is_jagged(declared[0]) else ()
    require_memory(title, op.given(declared), jagged)
    if any_autocast():
        declared = promoted(op.arguments, op.given(declared))
    if torch.compiler.is_compiling():
        return declared
    return as_saved(title, op.given(declared))


def check_values(op: Op, given: Given) -> None:
    """Asks C++ whether it takes a call, or the kinds of arguments where no C++ checks it."""
    if op.checks is None:
        check_arguments(op, given)
        return
    values = [given[name] for name in op.names]
    try:
        if torch.compiler.is_dynamo_compiling():
            op.checks(*values)  # a node without results, which graphs drop
        elif _has_memory(values):
            direct(op.checks)(*values)
        else:
            check_described(op, *values)
    except RuntimeError as error:
        raise translate(op.title_of(given), error) from None


def _has_memory(values: Sequence[Any]) -> bool:
    """Whether C++ can be given the tensors of a call."""
    kinds = (type(value) for value in values if isinstance(value, Tensor))
    return is_eager() and not has_dispatch_mode() and all(kind in PLAIN_CLASSES for kind in kinds)


def check_described(op: Op, *values: Any) -> None:
    """Asks C++ about a call by the shapes, dtypes, strides and devices of its tensors."""
    given = op.given(values)
    title = op.title_of(given)
    if has_undecided_sizes(values):  # checked where they are known
        return
    if not is_checked(f"{op.name}_forward"):
        check_arguments(op, given)
        return
    first = next(value for value in values if isinstance(value, Tensor))
    for argument, value in zip(op.arguments, values, strict=True):
        if isinstance(value, Tensor):
            check_dtype = check_indices if isinstance(argument, Indices) else check_known
            check_dtype(title, argument.name, value)
            if value.is_meta or not argument.on_cpu:
                check_device(title, argument.name, value, first)
    check_call(f"{op.name}_forward", title, op.kinds, values)


def with_hint(op: Op, given: Given, error: Exception) -> Exception:
    """The error of a refused call, with the op's hint if it has one for the call."""
    hint = op.hint(given) if op.hint is not None and is_ours(error) else ""
    return type(error)(f"{error} ({hint})") if hint else error


def refuse_call(op: Op, arguments: Sequence[Any]) -> None:
    """Raises where the op refuses a call, for one that failed elsewhere."""
    given = op.given(as_declared(op, arguments))
    try:
        check_values(op, given)
    except (ArgumentValueError, ArgumentTypeError) as error:
        raise with_hint(op, given, error) from None


def check_arguments(op: Op, given: Given) -> None:
    """Makes the checks of the kinds of arguments, and those of an op without C++."""
    title = op.title_of(given)
    for argument in op.arguments:
        if given[argument.name] is not None:
            argument.check(title, given[argument.name], given)
    if op.check is not None:
        op.check(title, given)


# ---- calls that are like one before -------------------------------------------------------------

_MOST_SIGNATURES = 1024  # of each op; then it forgets all


def _signature(arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """All that checks read of a call: numbers, and tensors without their memory. None where a
    tensor is not plain memory."""
    found: list[Any] = [any_autocast()]
    for value in arguments:
        if not isinstance(value, Tensor):
            found += (type(value), value)
        elif is_plain(value):
            found += (value.shape, value.stride(), value.dtype, value.device)
        else:
            return None
    return tuple(found)


def checked(op: Op, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a composed op behind checks of its arguments, which no C++ makes. They
    take longer than the pass of a small model, so what they accepted once is not checked again."""
    accepted: set[Any] = set()

    def run(*arguments: Any) -> Any:
        signature = _signature(arguments)
        if signature in accepted:
            return forward(*arguments)
        if is_distributed(arguments[0]):  # whose parts the call runs: ops inside know no DTensors
            raise ArgumentTypeError(f"{op.title}: {op.names[0]} is a DTensor, expected a Tensor")
        declared = as_declared(op, arguments)
        check_values(op, op.given(declared))
        if signature is not None and all(map(operator.is_, arguments, declared)):
            if len(accepted) >= _MOST_SIGNATURES:
                accepted.clear()
            accepted.add(signature)
        return forward(*declared)

    return run
