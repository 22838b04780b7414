# SPDX-License-Identifier: MIT
"""Converts a declared op's arguments to its schema's types, and makes C++'s checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    check_indices,
    check_known,
    dtype_name,
    is_ours,
)
from .._metadata import check_call
from .._torch import any_autocast, has_undecided_sizes
from ._constants import as_saved
from ._declare import Op
from ._declare_arguments import Given, Indices, Param, check_device
from ._kinds import is_jagged, require_memory
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
    if op.checked_by_cpp and not torch.compiler.is_dynamo_compiling():
        _check_in_cpp(op, op.title_of(given), given)
    else:
        check_arguments(op, given)


def _check_in_cpp(op: Op, title: str, given: Given) -> None:
    values = [given[argument.name] for argument in op.arguments]
    if has_undecided_sizes(values):  # checked where they are known
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
    """Makes the checks of the kinds of arguments, and that of an op without C++."""
    title = op.title_of(given)
    _check_one_of(op, title, given)
    for argument in op.arguments:
        if given[argument.name] is not None:
            argument.check(title, given[argument.name], given)
    _check_parameters(op, title, given)
    if op.check is not None:
        op.check(title, given)


def _check_one_of(op: Op, title: str, given: Given) -> None:
    if sum(given[name] is not None for name in op.one_of) == 1 or not op.one_of:
        return
    first, other = op.one_of
    if given[first] is None:
        raise ArgumentValueError(f"{title}: {first} is missing, expected it or {other}")
    raise ArgumentValueError(f"{title}: {first} is present beside {other}, expected one of the two")


def _check_parameters(op: Op, title: str, given: Given) -> None:
    parameters = {
        a.name: given[a.name] for a in op.arguments if isinstance(a, Param) and not a.own_dtype
    }
    present = {name: value for name, value in parameters.items() if value is not None}
    for name, value in present.items():
        first = next(iter(present.values())).dtype
        if value.dtype is not first:
            raise ArgumentTypeError(
                f"{title}: {name} is {dtype_name(value.dtype)}, expected"
                f" {dtype_name(first)} (all parameters and their gradients share one dtype)"
            )
