# SPDX-License-Identifier: MIT
"""Jagged tensors and DTensors through a declared op: rows are computed where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._errors import ArgumentValueError
from .._torch import jagged_like, ragged_dim
from ._declare_arguments import Given, Like, Param
from ._kinds import is_distributed, is_jagged, jagged_values
from ._sharding import Shards

if TYPE_CHECKING:
    from ._declare import Op

Arguments = tuple[Any, ...]


def has_kinds(arguments: Arguments) -> bool:
    """Whether an argument is jagged or a DTensor."""
    return any(is_jagged(x) or is_distributed(x) for x in arguments)


def run_kinds(op: Op, arguments: Arguments, backend: str) -> Any:
    """The results, which are of the kind of the first argument."""
    given = op.given(arguments)
    for argument in op.arguments:
        if isinstance(argument, Like) and given[argument.name] is not None:
            argument.check(op.name, given[argument.name], given)
    jagged = any(map(is_jagged, arguments))
    results = (_on_values if jagged else _on_shards)(op, given, backend)
    return results[0] if len(results) == 1 else results


def _call(op: Op, arguments: list[Any], backend: str) -> tuple[Any, ...]:
    results = op.call(*arguments, backend)
    return results if isinstance(results, tuple) else (results,)


def _on_values(op: Op, given: Given, backend: str) -> tuple[Any, ...]:
    name = op.names[0]
    x = given[name]
    parameters = [a.name for a in op.arguments if isinstance(a, Param)]
    if ragged_dim(x) == x.dim() - 1 and not (
        op.columnwise(given) and all(given[p] is None for p in parameters)
    ):
        raise ArgumentValueError(
            f"{op.name}: {name} is ragged in its last dimension, expected one before it"
        )
    values = [
        jagged_values(op.name, argument.name, given[argument.name])
        if argument.has_rows and given[argument.name] is not None
        else given[argument.name]
        for argument in op.arguments
    ]
    return tuple(jagged_like(x, y) for y in _call(op, values, backend))


def _on_shards(op: Op, given: Given, backend: str) -> tuple[Any, ...]:
    name = op.names[0]
    x = given[name]
    columnwise = op.columnwise(given)
    shards = Shards(op.name, x, lambda dim: columnwise or dim < x.dim() - 1, name)
    local: list[Any] = []
    for argument in op.arguments:
        value = given[argument.name]
        if value is not None and argument.is_tensor:
            place = shards.rows if argument.has_rows else shards.beside
            value = place(argument.name, value)
        local.append(value)
    shapes = [result.shape_of(given) for result in op.results if not result.saved]
    results = _call(op, local, backend)
    return tuple(shards.like_x(y, shape) for y, shape in zip(results, shapes, strict=True))
