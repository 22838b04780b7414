# SPDX-License-Identifier: MIT
"""Promotes dtypes that meet under autocast.

PyTorch lists the ops that autocast lowers (products) and those that it widens (losses, for one).
All others promote: a sum of two dtypes has the wider one. Autocast thus brings together activations
and parameters of dtypes that no user chose to differ. Rows of the dtypes that autocast lowers,
parameters and masks are promoted under it, where an op refuses them otherwise; rotations of q and k
and the tables of an embedding are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ._declare_arguments import Argument, Given, Like, Mask, Param
from ._dtype import LOWERED, accumulate_dtype


def _meets(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in LOWERED


def widest(tensors: Iterable[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, (x.dtype for x in tensors))


def beside(x: Tensor, of: Tensor) -> Tensor:
    """Casts ``x`` to a dtype that ops take beside ``of``: its own, or float32."""
    if not (_meets(x) and _meets(of)) or x.dtype in (of.dtype, accumulate_dtype(of)):
        return x
    return x.to(torch.promote_types(x.dtype, of.dtype))


def _of(argument: Argument, given: Given) -> Any:
    """The tensor beside which an argument may have another dtype; None if there is none."""
    if isinstance(argument, Param):
        return given[argument.dtype_like(given)]
    if isinstance(argument, Like) and argument.or_float32:
        return given[argument.of]
    return given["x"] if isinstance(argument, Mask) else None


def _to_widest(values: dict[str, Any], names: list[str]) -> None:
    names = [name for name in names if _meets(values[name])]
    if names:
        dtype = widest(values[name] for name in names)
        values |= {name: values[name].to(dtype) for name in names}


def rows_alike(arguments: Sequence[Argument]) -> list[str]:
    """The rows that share one dtype."""
    return [a.name for a in arguments if a.has_rows and not getattr(a, "or_float32", False)]


def promoted(arguments: Sequence[Argument], given: Given) -> tuple[Any, ...]:
    """Casts the rows of a declared op to one dtype, and arguments beside them to that dtype or
    float32."""
    values = dict(given)
    _to_widest(values, rows_alike(arguments))
    for argument in arguments:
        x, of = values[argument.name], _of(argument, values)
        if isinstance(x, Tensor) and isinstance(of, Tensor):
            values[argument.name] = beside(x, of)
    parameters = [a.name for a in arguments if isinstance(a, Param) and not a.own_dtype]
    _to_widest(values, parameters)
    return tuple(values.values())
