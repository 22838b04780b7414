# SPDX-License-Identifier: MIT
"""Converts a declared op's arguments to its schema's types, and makes C++'s checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._errors import ArgumentTypeError, ArgumentValueError, dtype_name
from .._torch import any_autocast
from ._constants import as_saved
from ._declare import Op
from ._declare_arguments import Given, Param
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
    """Makes the checks that C++ makes where it runs."""
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
