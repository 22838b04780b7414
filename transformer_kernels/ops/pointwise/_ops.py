# SPDX-License-Identifier: MIT
"""Declares the ops of the table's rows.

    plain   y = act(x + bias)
    gated   y = act(gate + bias) * (up + up_bias)

Without ``up``, ``gate`` is the packed pair (..., 2I) = [gate | up], and ``bias`` belongs to both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from .._declare import Formula, Kernels, Op, Ways
from .._declare_arguments import Given, Like, Param, Result, Rows
from .._dtype import accumulate_dtype
from .._parallel import elements, rows
from .._register import declare
from .table import ACTIVATIONS, Activation

Activate = Callable[[Tensor], Tensor]


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    wide = x.to(accumulate_dtype(x))
    return wide if bias is None else wide + bias.to(wide.dtype)


def _plain(activate: Activate, x: Tensor, bias: Tensor | None) -> Tensor:
    return activate(_biased(x, bias)).to(x.dtype).contiguous()


def _gated(
    activate: Activate,
    gate: Tensor,
    up: Tensor | None,
    bias: Tensor | None,
    up_bias: Tensor | None,
) -> Tensor:
    if up is None:
        a, b = _biased(gate, bias).chunk(2, -1)
    else:
        a, b = _biased(gate, bias), _biased(up, up_bias)
    return (activate(a) * b).to(gate.dtype).contiguous()


def _stock(activate: Activate) -> Formula:
    def plain(x: Tensor, bias: Tensor | None) -> Tensor:
        return activate(x if bias is None else x + bias).to(x.dtype)

    return plain


def _stock_gated(activate: Activate) -> Formula:
    def gated(
        gate: Tensor, up: Tensor | None, bias: Tensor | None, up_bias: Tensor | None
    ) -> Tensor:
        a, b = gate if bias is None else gate + bias, up
        if b is None:
            a, b = a.chunk(2, -1)
        elif up_bias is not None:
            b = b + up_bias
        return (activate(a) * b).to(gate.dtype)

    return gated


def _parallel_gated(op: Op, given: Given) -> Ways:
    """By any dimension, a packed pair by rows: its columns belong together."""
    return rows(op, given) if given["up"] is None else elements(op, given)


def _public(op: str) -> str:
    """The function whose ``approximate`` chooses GELU's formula."""
    return f"functional.{op.removesuffix('_tanh')}"


def _shape_of_gated(given: Given) -> Sequence[int]:
    *leading, columns = given["gate"].shape
    return (*leading, columns if given["up"] is not None else columns // 2)


def _plain_triton(name: str) -> Kernels:
    from .pointwise_triton import plain_kernels

    return plain_kernels(name)


def _gated_triton(name: str) -> Kernels:
    from .pointwise_triton import gated_kernels

    return gated_kernels(name)


def _declare_plain(row: Activation) -> Op:
    return declare(
        row.name,
        function=_public(row.name),
        stock=_stock(row.formula),
        parallel=elements,
        arguments=(Rows("x"), Param("bias")),
        results=(Result("y"),),
        backward="(dy, x, bias, need_dbias, need_y) -> dx, dbias, y",
        formula=partial(_plain, row.formula),
        triton=partial(_plain_triton, row.name),
        replaces=row.replaces,
        text=row.text,
    )


def _declare_gated(name: str, row: Activation) -> Op:
    return declare(
        name,
        function=_public(name),
        stock=_stock_gated(row.formula),
        parallel=_parallel_gated,
        arguments=(
            Rows("gate"),
            Like("up", optional=True, of="gate"),
            Param("bias", of="gate"),
            Param("up_bias", of="gate", beside="up"),
        ),
        results=(Result("y", like="gate", shape=_shape_of_gated),),
        backward=(
            "(dy, gate, up, bias, up_bias, need_dbias, need_y) -> dgate, dup, dbias, dup_bias, y"
        ),
        flags={"need_dbias": ("bias", "up_bias")},
        formula=partial(_gated, row.formula),
        triton=partial(_gated_triton, row.name),
        text=f"{row.name}(gate) * up",
    )


PLAIN = {row.name: _declare_plain(row) for row in ACTIVATIONS}
GATED = {row.gated: _declare_gated(row.gated, row) for row in ACTIVATIONS if row.gated}
