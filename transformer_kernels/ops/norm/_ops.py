# SPDX-License-Identifier: MIT
"""Declares the norms over one dimension, each alone and of a sum (formulas: ``_formula.py``).

The two ops of a norm share a backward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from .._declare import Formula, Kernels, Op
from .._declare_arguments import Flag, Like, Number, Param, Result, Rows, saved_rows
from .._parallel import rows
from .._register import declare
from . import _formula, _stock

_OPTIONS = (Param("weight"), Param("bias"), Number("eps"), Flag("zero_centered_weight"))
_BACKWARD = (
    "(dy, dsum?, {of}, {statistics}, weight, bias, zero_centered_weight, need_dweight, need_dbias)"
    " -> dx, dweight, dbias"
)


class NormOps(NamedTuple):
    """The two ops of a norm."""

    alone: Op
    add: Op


def _formulas(center: bool) -> tuple[Formula, Formula, Formula]:
    """Returns the formulas (alone, add, gradient)."""

    def alone(x: Tensor, weight: Any, bias: Any, eps: float, zero_centered: bool) -> Tensor:
        stats = _formula.statistics(x, eps, center)
        return _formula.affine(x, stats, weight, bias, zero_centered)

    def add(x: Tensor, residual: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        s = (x + residual).contiguous()
        return alone(s, *options), s

    def gradient(dy: Tensor, dsum: Tensor | None, s: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        count = 2 if center else 1
        return _formula.backward(dy, dsum, s, rest[:count], *rest[count:])

    return alone, add, gradient


def _triton(center: bool, member: int) -> Kernels:
    from .norm_triton import norm_kernels

    return norm_kernels(center)[member]


def declare_norm(name: str, center: bool, replaces: tuple[Any, ...], text: str) -> NormOps:
    names = ("mean", "rstd") if center else ("rstd",)
    statistics = tuple(map(saved_rows, names))
    alone, add, gradient = _formulas(center)
    stock = _stock.layer_norm if center else _stock.rms_norm
    op = declare(
        name,
        function=f"functional.{name}",
        stock=stock,
        parallel=rows,
        unread=("bias",),
        arguments=(Rows("x"), *_OPTIONS),
        results=(Result("y"), *statistics),
        backward=_BACKWARD.format(of="x", statistics=", ".join(names)),
        formula=alone,
        statistics=lambda given: _formula.statistics(given["x"], given["eps"], center),
        gradient=gradient,
        triton=partial(_triton, center, 0),
        replaces=replaces,
        text=text,
    )
    of_sum = declare(
        f"add_{name}",
        function=f"functional.add_{name}",
        stock=_stock.of_sum(stock),
        parallel=rows,
        unread=("bias",),
        shown=name,
        arguments=(Rows("x"), Like("residual"), *_OPTIONS),
        results=(Result("y"), Result("sum"), *statistics),
        backward=_BACKWARD.format(of="sum", statistics=", ".join(names)),
        backward_of=op,
        sums={"sum": ("x", "residual")},
        has_inference=False,
        formula=add,
        statistics=lambda given: _formula.statistics(given["sum"], given["eps"], center),
        gradient=gradient,
        triton=partial(_triton, center, 1),
        text=text,
    )
    return NormOps(op, of_sum)
