# SPDX-License-Identifier: MIT
"""The test cases of the pointwise ops, from their table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops.pointwise._ops import GATED, PLAIN
from ..ops.pointwise.table import ACTIVATIONS, Activation
from . import reference
from .case import Case, Problem
from .inputs import randn

ROWS = {row.name: row for row in ACTIVATIONS} | {row.gated: row for row in ACTIVATIONS if row.gated}


def exact(row: Activation) -> Callable[[Tensor], Tensor]:
    """The activation in float64: its definition, or the row's formula if that is one."""
    function: Callable[[Tensor], Tensor] = getattr(reference, row.name, row.formula)
    return function


def _term_error(x: Tensor) -> float:
    """The error of an activation's slope: 16-bit tensors use approximations (docs/numerics.md)."""
    return 2.0**-20 if x.dtype.itemsize == 2 else 0.0


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.to(torch.promote_types(x.dtype, bias.dtype))


def _parameter(x: Tensor, float32: bool) -> Tensor:
    dtype = torch.float32 if float32 and x.dtype is not torch.float64 else x.dtype
    return randn(x.shape[-1:], dtype, x.device)


def plain_case(name: str, variant: str = "", bias: bool = True, float32: bool = False) -> Case:
    row, declared = ROWS[name], PLAIN[name]
    call = declared.call

    def build(x: Tensor) -> Problem:
        def ours(x: Tensor, bias: Tensor | None = None, backend: str = "auto") -> Tensor:
            return call(x, bias, backend)

        def with_(activation: Any) -> Callable[..., Tensor]:
            return lambda x, bias=None: activation(_biased(x, bias)).to(x.dtype)

        parameters = [_parameter(x, float32)] if bias else []

        def stock(x: Tensor, bias: Tensor | None = None) -> Tensor:
            y: Tensor = declared.stock(x, bias)
            return y

        problem = (ours, stock, with_(exact(row)))
        return Problem((x, *parameters), *problem, term_error=_term_error(x))

    return Case(name + variant, build)


def gated_case(
    name: str, variant: str = "", bias: bool = True, float32: bool = False, packed: bool = False
) -> Case:
    """A case with a gate. Packed pairs need an even number of columns, so an odd last one is left
    out."""
    row, declared = ROWS[name], GATED[name]
    call = declared.call

    def split(tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rest = iter(tensors)
        return (
            None if packed else next(rest),
            next(rest) if bias else None,
            next(rest) if bias and not packed else None,
        )

    def ours(gate: Tensor, *tensors: Tensor, backend: str = "auto") -> Tensor:
        return call(gate, *split(tensors), backend)

    def with_(activation: Any) -> Callable[..., Tensor]:
        def function(gate: Tensor, *tensors: Tensor) -> Tensor:
            up, first, second = split(tensors)
            dtype, a = gate.dtype, _biased(gate, first)
            if up is None:
                a, b = a.chunk(2, -1)
            else:
                b = _biased(up, second)
            return (activation(a) * b).to(dtype)

        return function

    def build(x: Tensor) -> Problem:
        gate = x[..., : x.shape[-1] // 2 * 2] if packed else x
        tensors = [gate]
        if not packed:
            tensors.append(randn(x.shape, x.dtype, x.device))
        if bias:
            tensors += [_parameter(gate, float32) for _ in range(1 if packed else 2)]

        def stock(gate: Tensor, *tensors: Tensor) -> Tensor:
            y: Tensor = declared.stock(gate, *split(tensors))
            return y

        problem = (ours, stock, with_(exact(row)))
        return Problem(tuple(tensors), *problem, term_error=_term_error(x))

    return Case(name + variant, build)


def away_from_corners(problem: Problem) -> Problem:
    """The problem with numbers rounded to eighths, and rows to odd sixteenths: no sum of a row and
    a bias is near 0, where the slope of relu jumps."""
    rows = problem.tensors[0].dim()
    tensors = tuple(((8 * t).round() + (t.dim() == rows) / 2) / 8 for t in problem.tensors)
    return dataclasses.replace(problem, tensors=tensors)


MAIN = [*map(plain_case, PLAIN), *map(gated_case, GATED)]
VARIANTS = [
    variant
    for name in PLAIN
    for variant in (
        plain_case(name, "-plain", bias=False),
        plain_case(name, "-float32", float32=True),
    )
] + [
    variant
    for name in GATED
    for variant in (
        gated_case(name, "-plain", bias=False),
        gated_case(name, "-packed", packed=True),
        gated_case(name, "-packed_plain", bias=False, packed=True),
        gated_case(name, "-float32", float32=True),
    )
]
