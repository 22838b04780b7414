# SPDX-License-Identifier: MIT
"""A linear layer on CUDA with a route for each of its products.

A route is ``OURS``, ``TORCH``, or the number of one of cuBLASLt's algorithms, from 0 on in the
order in which it offers them. The raw ops here refuse an algorithm that is not offered; the layer
then runs our product.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ..._errors import ArgumentValueError, translate
from ..._library import direct, log_dispatch
from .._declare import Kernels
from .._declare_arguments import Given, Integer, Result, Rows, Table
from .._declare_call import make_call
from .._declare_fake import fake_backward, fake_forward
from .._declare_raw import declare_raw
from .._register import declare, without_saved
from .._work import PRODUCT, products_with
from . import _formula
from ._arguments import Bias
from ._formula import as_rows
from ._ops import LINEAR, by_operands, like_weight, shape_of_y
from ._tuned import OURS, TORCH
from ._weights import copy_memory, copy_of, gradient_of, multiplied, product_like

Gradients = tuple[Tensor, Tensor, Tensor]

_OP = "linear"


# ---- raw ops ------------------------------------------------------------------------------------


_FORWARD, _BACKWARD = 3, 7  # arguments of LINEAR's passes, in front of the algorithms

ALGORITHM_FORWARD = declare_raw(
    "linear_algorithm_forward(Tensor x, Tensor weight, Tensor? bias, int algorithm) -> Tensor y",
    of=LINEAR,
    flops=products_with("weight"),
    reference=lambda *given: _formula.linear(*given[:_FORWARD]),
    fake=lambda *given: fake_forward(LINEAR, *given[:_FORWARD]),
)
ALGORITHM_BACKWARD = declare_raw(
    "linear_algorithm_backward(Tensor dy, Tensor x, Tensor weight, Tensor? bias, bool need_dx,"
    " bool need_dweight, bool need_dbias, int dx_algorithm, int dweight_algorithm)"
    " -> (Tensor dx, Tensor dweight, Tensor dbias)",
    of=LINEAR,
    flops=products_with("weight"),
    pass_="backward",
    reference=lambda *given: _formula.linear_gradient(*given[:_BACKWARD]),
    fake=lambda *given: fake_backward(LINEAR, *given[:_BACKWARD]),
)

_ours, _our_gradients = direct(LINEAR.raw.forward), direct(LINEAR.raw.backward)
_by_algorithm = direct(ALGORITHM_FORWARD)
_gradients_by_algorithm = direct(ALGORITHM_BACKWARD)


# ---- products by their routes -------------------------------------------------------------------


# Each raises where cuBLASLt does not offer the algorithm.


def y_by(route: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    if route == TORCH:
        return _formula.linear(x, weight, bias)
    return _ours(x, weight, bias) if route == OURS else _by_algorithm(x, weight, bias, route)


def dx_by(route: int, dy: Tensor, x: Tensor, weight: Tensor) -> Any:
    if route == TORCH:
        return dy @ weight
    return _gradients(dy, x, weight, None, (True, False, False), (route, OURS))[0]


def dweight_by(route: int, dy: Tensor, x: Tensor, weight: Tensor) -> Any:
    if route == TORCH:
        return product_like(weight, as_rows(dy), as_rows(x))
    return _gradients(dy, x, weight, None, (False, True, False), (OURS, route))[1]


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, bool, bool],
    routes: tuple[int, int],
) -> Any:  # fmt: skip
    if max(routes) == OURS:
        return _our_gradients(dy, x, weight, bias, *needs)
    return _gradients_by_algorithm(dy, x, weight, bias, *needs, *routes)


# ---- the layer ----------------------------------------------------------------------------------


def _say(error: RuntimeError) -> None:
    """Logs that our product runs instead: the algorithm is not offered, its workspace does not fit
    in memory, or arguments do not fit together, for which our product raises."""
    log_dispatch(f"{str(translate(_OP, error)).splitlines()[0]}; ours runs")


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, y_route: int,
    dx_route: int, dweight_route: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    if y_route >= 0 and (bias is None or bias.dtype is not x.dtype):
        y_route = OURS  # algorithms were timed with a bias of x's dtype; without one numbers differ
    copy = copy_of(weight, x)
    weight = multiplied(weight, copy, x)
    try:
        return y_by(y_route, x, weight, bias), copy
    except RuntimeError as error:
        _say(error)
    return y_by(OURS, x, weight, bias), copy


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, weight_copy: Tensor | None,
    dx_route: int, dweight_route: int, need_dx: bool, need_dweight: bool, need_dbias: bool,
    *, in_place: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Computes all gradients that are not PyTorch's in one call. PyTorch computes the gradient of a
    master weight, and writes it in float32; ours and cuBLASLt write other dtypes."""
    lowered = multiplied(weight, weight_copy, x)
    dweight_is_torchs = dweight_route == TORCH or weight.dtype is not x.dtype
    needs = (
        need_dx and dx_route != TORCH, need_dweight and not dweight_is_torchs, need_dbias,
    )  # fmt: skip
    routes = (max(dx_route, OURS), max(dweight_route, OURS))
    dx, dweight, dbias = None, None, None
    try:
        if any(needs):
            dx, dweight, dbias = _gradients(dy, x, lowered, bias, needs, routes)
    except RuntimeError as error:
        _say(error)
        dx, dweight, dbias = _gradients(dy, x, lowered, bias, needs, (OURS, OURS))
    if need_dx and dx_route == TORCH:
        dx = dx_by(TORCH, dy, x, lowered)
    if need_dweight and dweight_is_torchs:
        gradient = gradient_of(weight, in_place)
        gradient.product(as_rows(dy), as_rows(x))
        return dx, gradient.result, dbias
    return dx, dweight, dbias


_backward_in_place = partial(_backward, in_place=True)


def _layer_formula(
    x: Tensor, weight: Tensor, bias: Tensor | None,
    y_route: int, dx_route: int, dweight_route: int,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    return _formula.linear(x, weight.to(x.dtype), bias)


def _layer_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None,
    weight_copy: Tensor | None,  # noqa: ARG001
    dx_route: int, dweight_route: int,  # noqa: ARG001
    need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> Gradients:  # fmt: skip
    dx, dweight, dbias = _formula.linear_gradient(
        dy, x, weight.to(x.dtype), bias, need_dx, need_dweight, need_dbias
    )
    return dx, dweight.to(weight.dtype), dbias


_ROUTES = ("y_route", "dx_route", "dweight_route")


def _weight_copy(given: Given) -> Tensor | None:
    return copy_of(given["weight"], given["x"])


def _check(op: str, given: Given) -> None:
    for name in _ROUTES:
        if given[name] < TORCH:
            raise ArgumentValueError(
                f"{op}: {name} is {given[name]}, expected the number of an algorithm, {OURS} for"
                f" ours or {TORCH} for PyTorch's"
            )


ROUTED_LINEAR = declare(
    "routed_linear",
    function="functional.linear",
    kind=PRODUCT,
    parallel=by_operands,
    flops=products_with("weight"),
    unread=("bias",),
    arguments=(
        Rows("x"), Table("weight", of="x", or_float32=True), Bias("bias"),
        *map(Integer, _ROUTES),
    ),
    results=(Result("y", shape=shape_of_y), Result("weight_copy", saved=True)),
    backward=(
        "(dy, x, weight, bias, weight_copy, dx_route, dweight_route, need_dx, need_dweight,"
        " need_dbias) -> dx, dweight, dbias"
    ),
    formula=_layer_formula,
    statistics=_weight_copy,
    gradient=_layer_gradient,
    check=_check,
    memory={"weight_copy": copy_memory("weight"), "dweight": like_weight},
    has_inference=False,
    composed=(_forward, _backward),
    eager_backward=_backward_in_place,
    shown=_OP,
    text="x @ weight.T + bias, each product by its route",
)  # fmt: skip

# Eager calls of plain tensors, which C++ checks: checks in Python would take longer than the call.
call = make_call(
    ROUTED_LINEAR,
    Kernels(_forward, _backward_in_place, without_saved(ROUTED_LINEAR, _forward)),
)
