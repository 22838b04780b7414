# SPDX-License-Identifier: MIT
"""Both passes of an MLP in one call each, by our products.

z of a plain MLP includes the bias; z and up of a gated one do not. Without ``up_weight``, the
weight, the bias and z of a gated MLP hold both gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ..._library import direct
from .._declare_arguments import Given
from .._declare_raw import declare_raw
from .._work import products_with
from ..pointwise.table import ACTIVATIONS
from . import _formula
from ._arguments import is_by_columns
from ._formula import bias_gradient, slope_times, write_dweight
from ._ops import GATED_FORMULAS, LINEAR_ACT
from ._weights import Gradient, copy_of, multiplied

Optionals = Sequence[Tensor | None]
Three = tuple[Tensor, Tensor, Tensor]

# On CUDA the gradients of weights are cuBLASLt's products: with those of our own table both passes
# of an MLP of GPT-2's sizes took 8 % longer on an H100.
_DWEIGHT_ALGORITHM = -2


# ---- formulas -----------------------------------------------------------------------------------


def _activate(
    bias: Tensor | None, up_bias: Tensor | None, activation: int, gated: bool
) -> Callable[[Tensor, Tensor | None], Tensor]:
    if not gated:
        return lambda z, up: ACTIVATIONS[activation].formula(z)  # noqa: ARG005
    return lambda z, up: GATED_FORMULAS[activation](z, up, bias, up_bias)


def _before_activation(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None, gated: bool
) -> tuple[Tensor, Tensor | None]:
    z = _formula.linear(x, weight, None if gated else bias)
    return z, None if up_weight is None else _formula.linear(x, up_weight, None)


def _forward_formula(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, activation: int,
    gated: bool, recompute: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    z, up = _before_activation(x, weight, up_weight, bias, gated)
    h = _activate(bias, up_bias, activation, gated)(z, up)
    y = h if down_weight is None else _formula.linear(h, down_weight, down_bias)
    none = [x.new_empty(0) for _ in range(3)]
    return (
        y,
        z if recompute < 2 else none[0],
        up if recompute < 2 and up is not None else none[1],
        h if recompute == 0 and down_weight is not None else none[2],
    )


def _backward_formula(
    dy: Tensor, x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, z: Tensor | None,
    up: Tensor | None, h: Tensor | None, dweight: Tensor | None, dup_weight: Tensor | None,
    ddown_weight: Tensor | None, activation: int, gated: bool, overwrite_z: bool,  # noqa: ARG001
    accumulate: bool, dweight_algorithm: int,  # noqa: ARG001
    need_dx: bool, need_dbias: bool, need_ddown_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if z is None:
        z, up = _before_activation(x, weight, up_weight, bias, gated)
    activate = _activate(bias, up_bias, activation, gated)
    dh = dy if down_weight is None else dy @ down_weight
    dz = slope_times(lambda t: activate(t, up), z, dh)
    dup = None if up is None else slope_times(lambda t: activate(z, t), up, dh)
    dx, dbias, dup_bias, ddown_bias = (x.new_empty(0) for _ in range(4))
    if need_dx:
        dx = (dz @ weight).contiguous()
    if dweight is not None:
        write_dweight(dweight, dz, x, accumulate)
    if need_dbias and bias is not None:
        dbias = bias_gradient(dz, bias.dtype)
    if dup is not None and up_weight is not None:
        if need_dx:
            dx = dx + dup @ up_weight
        if dup_weight is not None:
            write_dweight(dup_weight, dup, x, accumulate)
        if need_dbias and up_bias is not None:
            dup_bias = bias_gradient(dup, up_bias.dtype)
    if ddown_weight is not None:
        write_dweight(ddown_weight, dy, activate(z, up) if h is None else h, accumulate)
    if need_ddown_bias and down_bias is not None:
        ddown_bias = bias_gradient(dy, down_bias.dtype)
    return dx, dbias, dup_bias, ddown_bias


# ---- raw ops ------------------------------------------------------------------------------------


def _fake_forward(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,  # noqa: ARG001
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None,  # noqa: ARG001
    activation: int, gated: bool, recompute: int,  # noqa: ARG001
) -> tuple[Tensor, ...]:  # fmt: skip
    lines = weight.shape[0]
    hidden = lines // 2 if gated and up_weight is None else lines

    def rows(columns: int, kept: bool = True) -> Tensor:
        return x.new_empty((*x.shape[:-1], columns) if kept else 0)

    return (
        rows(hidden if down_weight is None else down_weight.shape[0]),
        rows(lines, recompute < 2),
        rows(lines, recompute < 2 and up_weight is not None),
        rows(hidden, recompute == 0 and down_weight is not None),
    )


def _fake_backward(
    dy: Tensor, x: Tensor, weight: Tensor, up_weight: Tensor | None,  # noqa: ARG001
    bias: Tensor | None, up_bias: Tensor | None, down_weight: Tensor | None,  # noqa: ARG001
    down_bias: Tensor | None, z: Tensor | None, up: Tensor | None,  # noqa: ARG001
    h: Tensor | None, dweight: Tensor | None, dup_weight: Tensor | None,  # noqa: ARG001
    ddown_weight: Tensor | None, activation: int, gated: bool, overwrite_z: bool,  # noqa: ARG001
    accumulate: bool, dweight_algorithm: int,  # noqa: ARG001
    need_dx: bool, need_dbias: bool, need_ddown_bias: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    def like(bias: Tensor | None, needed: bool) -> Tensor:
        return x.new_empty(0) if bias is None or not needed else bias.new_empty(bias.shape)

    return (
        x.new_empty(x.shape if need_dx else 0), like(bias, need_dbias), like(up_bias, need_dbias),
        like(down_bias, need_ddown_bias),
    )  # fmt: skip


_WEIGHTS = ("weight", "up_weight", "down_weight")
_products = products_with(*_WEIGHTS)


def _backward_flops(pass_: str, given: Given) -> float:  # noqa: ARG001
    """A gradient of a weight is asked for where there is memory for it."""
    needs = {f"need_d{name}": given[f"d{name}"] is not None for name in _WEIGHTS}
    return cast(float, _products("backward", {**given, **needs}))


_OPERANDS = (
    "Tensor x, Tensor weight, Tensor? up_weight, Tensor? bias, Tensor? up_bias,"
    " Tensor? down_weight, Tensor? down_bias"
)
_forward = direct(
    declare_raw(
        f"packed_mlp_forward({_OPERANDS}, int activation, bool gated, int recompute)"
        " -> (Tensor y, Tensor z, Tensor up, Tensor h)",
        of=LINEAR_ACT,
        flops=_products,
        reference=_forward_formula,
        fake=_fake_forward,
    )
)
_backward = direct(
    declare_raw(
        f"packed_mlp_backward(Tensor dy, {_OPERANDS}, Tensor(a!)? z, Tensor(b!)? up,"
        " Tensor? h, Tensor(c!)? dweight, Tensor(d!)? dup_weight, Tensor(e!)? ddown_weight,"
        " int activation, bool gated, bool overwrite_z, bool accumulate, int dweight_algorithm,"
        " bool need_dx, bool need_dbias, bool need_ddown_bias)"
        " -> (Tensor dx, Tensor dbias, Tensor dup_bias, Tensor ddown_bias)",
        of=LINEAR_ACT,
        flops=_backward_flops,
        reference=_backward_formula,
        fake=_fake_backward,
    )
)


# ---- passes -------------------------------------------------------------------------------------


def _two(values: Sequence[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    return values[0], values[1] if len(values) > 1 else None


def forward(
    activation: int, x: Tensor, weights: Optionals, biases: Optionals, down_weight: Tensor | None,
    down_bias: Tensor | None, recompute: int,
) -> Optionals:  # fmt: skip
    """Returns y, z (and up of two ``weights``), h, and copies of master weights; None for each that
    is not saved. With two ``weights``, the second of which may be None, the MLP is gated."""
    every = (*weights, down_weight)
    copies = [copy_of(weight, x) for weight in every]
    *first, down = [w if c is None else c for w, c in zip(every, copies, strict=True)]
    weight, up_weight = _two(first)
    bias, up_bias = _two(biases)
    y, z, up, h = _forward(
        x, weight, up_weight, bias, up_bias, down, down_bias, activation, len(weights) == 2,
        recompute,
    )  # fmt: skip
    kept: list[Tensor | None] = [z, None if up_weight is None else up][: len(weights)]
    if recompute == 2:
        kept = [None for _ in kept]
    return (y, *kept, h if recompute == 0 and down is not None else None, *copies)


def _memory_of(gradients: Sequence[Gradient | None]) -> tuple[list[Tensor | None], bool]:
    """The memory of each gradient, and whether the products are added to it: to zeros, where only
    some gradients are."""
    adds = any(gradient is not None and gradient.adds for gradient in gradients)
    memory = [None if gradient is None else gradient.allocated() for gradient in gradients]
    for own, gradient in zip(memory, gradients, strict=True):
        if own is not None and gradient is not None and adds and not gradient.adds:
            own.zero_()
    return memory, adds


def _has_lines(gradient: Tensor) -> bool:
    return gradient.is_contiguous() or is_by_columns(gradient)


def backward(
    activation: int, dy: Tensor, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, z: Optionals, h: Tensor | None,
    copies: Optionals, recompute: int, need_dx: bool, gradients: Sequence[Gradient | None],
    need_dbias: bool, need_ddown_bias: bool, overwrite_z: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of x, each weight, each bias, the second weight and its bias. Those
    that are not asked for, or that were added to ``.grad``, are None. With ``overwrite_z``, the
    gradients of z are written over it."""
    gradients = [
        Gradient(g.like) if g is not None and g.adds and not _has_lines(g.allocated()) else g
        for g in gradients
    ]
    memory, adds = _memory_of(gradients)
    every = (*weights, down_weight)
    *first, down = [
        None if weight is None else multiplied(weight, copy, x)
        for weight, copy in zip(every, copies, strict=True)
    ]
    weight, up_weight = _two(first)
    bias, up_bias = _two(biases)
    kept, kept_up = _two(z) if recompute < 2 else (None, None)
    dweight, dup_weight = _two(memory[:-1])
    gated = len(weights) == 2
    dx, dbias, dup_bias, ddown_bias = _backward(
        dy, x, weight, up_weight, bias, up_bias, down, down_bias, kept,
        None if up_weight is None else kept_up, h if recompute == 0 and down is not None else None,
        dweight, dup_weight, memory[-1], activation, gated, overwrite_z, adds,
        _DWEIGHT_ALGORITHM, need_dx, need_dbias, need_ddown_bias,
    )  # fmt: skip
    for own in memory if adds else ():
        if own is not None:
            torch.autograd.graph.increment_version(own)
    dbiases = (dbias, dup_bias)[: len(weights)]
    *dweights, ddown_weight = [None if g is None else g.result for g in gradients]
    return (
        dx if need_dx else None,
        *dweights,
        *(
            own if need_dbias and given is not None else None
            for own, given in zip(dbiases, biases, strict=True)
        ),
        ddown_weight,
        ddown_bias if need_ddown_bias and down_bias is not None else None,
    )
