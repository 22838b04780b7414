# SPDX-License-Identifier: MIT
"""Runs a declared op on jagged tensors and DTensors: on their rows, where those are in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from .._errors import ArgumentValueError
from .._torch import jagged_like, ragged_dim
from ._declare import Call, Op, Ways
from ._declare_arguments import Given, Like, Param, as_tuple, one_or_all
from ._kinds import is_distributed, is_jagged, jagged_values
from ._parallel import rows, splits
from ._sharding import on_shards

Arguments = tuple[Any, ...]


def has_kinds(op: Op, arguments: Arguments) -> bool:
    """Whether an argument is a DTensor, or jagged where the op takes that."""
    return any(is_distributed(x) or (op.jagged and is_jagged(x)) for x in arguments)


def run_kinds(
    op: Op, arguments: Arguments, backend: str, call: Call | None = None, dims: int | None = None
) -> Any:
    """Runs the op; results have the kind of the first argument.

    ``call`` runs plain tensors, by default the op itself; it normalises the last ``dims``
    dimensions together, and gives results of the first argument's shape.
    """
    run = partial(op.call if call is None else call, backend=backend)
    given = op.given(arguments)
    ways = partial(_ways, op, given, dims)
    if any(map(is_jagged, arguments)):
        return one_or_all(_on_values(op, given, ways(), run))
    return one_or_all(on_shards(op, given, ways, run, dims, backend))


def _ways(op: Op, given: Given, dims: int | None) -> Ways:
    """The ways in which a call may be split, whose arguments of rows fit together."""
    ways = op.parallel(op, given) if dims is None else rows(op, given, dims)
    for argument in op.arguments:
        if isinstance(argument, Like) and given[argument.name] is not None:
            argument.check(op.title_of(given), given[argument.name], given)
    return ways


def _on_values(op: Op, given: Given, ways: Ways, run: Call) -> tuple[Any, ...]:
    """Runs on the values; a ragged dimension has to be one that may be split, and not a
    parameter's."""
    name = op.names[0]
    x = given[name]
    present = {a.name for a in op.arguments if isinstance(a, Param) and given[a.name] is not None}
    if not any(present.isdisjoint(way) for way in splits(ways, name, x.dim() - ragged_dim(x))):
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
