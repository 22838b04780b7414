# SPDX-License-Identifier: MIT
"""The ways in which an op may be split between devices, as its declaration lists them.

A way maps tensors to the dimension that is split, counted from the last as 1. Each device computes
its part of the results from its part of the arguments. A tensor that the way does not name is the
same on every device, and so is one that broadcasts: with size 1 in that dimension, or with fewer
dimensions. The gradient of such a tensor is the sum over devices.
"""

from __future__ import annotations

from typing import Any

from ._declare import Op, Way, Ways
from ._declare_arguments import Given, Mask, Param

SUMMED = 0  # marks a result of which each device computes a summand


def rows(op: Op, given: Given, last: int | None = None) -> Ways:
    """By rows: in every dimension before those that the op runs over, the ``last`` ones."""
    last = op.last_dims(given) if last is None else last
    return [_by_rows(op, dim) for dim in range(last + 1, given[op.names[0]].dim() + 1)]


def elements(op: Op, given: Given) -> Ways:
    """By any dimension: no element needs another. Parameters are split as their columns are."""
    parameters = [a.name for a in op.arguments if isinstance(a, Param)]
    last = _by_rows(op, 1) | dict.fromkeys(parameters, 1)
    return [last, *rows(op, given, 1)]


def _by_rows(op: Op, dim: int) -> dict[str, int]:
    """Splits arguments with the first one's shape, tensors that broadcast to it, and results."""
    way = {a.name: dim for a in op.arguments if a.has_rows or isinstance(a, Mask)}
    of_rows = {a.name: dim - 1 for a in op.arguments if getattr(a, "per_row", False)}
    return {**way, **of_rows, **dict.fromkeys(op.returned, dim)}


def splits(ways: Ways, name: str, dim: int) -> list[Way]:
    """The ways that split a dimension of a tensor."""
    return [way for way in ways if way.get(name) == dim]


def leading(x: Any, last: int = 1) -> range:
    """The dimensions before the ``last`` ones, counted from the last as 1."""
    return range(last + 1, x.dim() + 1)
