# SPDX-License-Identifier: MIT
"""Jagged tensors and DTensors through a declared op: rows are computed where they lie."""

from __future__ import annotations

from functools import partial
from typing import Any

from .._errors import ArgumentValueError
from .._torch import jagged_like, ragged_dim
from ._declare import Call, Op
from ._declare_arguments import Given, Like, Param, Seed, as_tuple, one_or_all
from ._kinds import is_distributed, is_jagged, jagged_values
from ._sharding import Shards

Arguments = tuple[Any, ...]


def has_kinds(arguments: Arguments) -> bool:
    """Whether an argument is jagged or a DTensor."""
    return any(is_jagged(x) or is_distributed(x) for x in arguments)


def run_kinds(
    op: Op, arguments: Arguments, backend: str, call: Call | None = None, dims: int | None = None
) -> Any:
    """The results, which are of the kind of the first argument.

    ``call`` runs what lies in memory, by default the op itself; the last ``dims`` dimensions belong
    together, by default those that the op says.
    """
    run = partial(op.call if call is None else call, backend=backend)
    given = op.given(arguments)
    dims = op.last_dims(given) if dims is None else dims
    for argument in op.arguments:
        if isinstance(argument, Like) and given[argument.name] is not None:
            argument.check(op.title_of(given), given[argument.name], given)
    jagged = any(map(is_jagged, arguments))
    results = (_on_values if jagged else _on_shards)(op, given, run, dims)
    return one_or_all(results)


def _on_values(op: Op, given: Given, run: Call, dims: int) -> tuple[Any, ...]:
    name = op.names[0]
    x = given[name]
    parameters = [a.name for a in op.arguments if isinstance(a, Param)]
    if ragged_dim(x) >= x.dim() - dims and not (
        op.columnwise(given) and all(given[p] is None for p in parameters)
    ):
        raise ArgumentValueError(
            f"{op.title_of(given)}: {name} is ragged in its last dimension, expected one before it"
        )
    values = [
        jagged_values(op.title_of(given), argument.name, given[argument.name])
        if argument.has_rows and given[argument.name] is not None
        else given[argument.name]
        for argument in op.arguments
    ]
    return tuple(jagged_like(x, y) for y in as_tuple(run(*values)))


def _on_shards(op: Op, given: Given, run: Call, dims: int) -> tuple[Any, ...]:
    name = op.names[0]
    x = given[name]
    columnwise = op.columnwise(given)
    shards = Shards(op.title_of(given), x, lambda dim: columnwise or dim < x.dim() - dims, name)
    local: list[Any] = []
    for argument in op.arguments:
        value = given[argument.name]
        if isinstance(argument, Seed) and value is not None:
            raise ArgumentValueError(
                f"{op.title_of(given)}: {argument.draws} is {given[argument.draws]:g}, expected 0"
                " with DTensors (local_map gives every device a call of its own, with its own seed)"
            )
        if value is not None and argument.is_tensor:
            place = shards.rows if argument.has_rows else shards.beside
            value = place(argument.name, value)
        local.append(value)
    shapes = [result.shape_of(given) for result in op.results if not result.saved]
    results = as_tuple(run(*local))
    return tuple(shards.like_x(y, shape) for y, shape in zip(results, shapes, strict=True))
