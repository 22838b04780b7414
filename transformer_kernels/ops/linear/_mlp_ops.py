# SPDX-License-Identifier: MIT
"""Declares the MLPs; each op is one autograd node, and ``recompute`` says which activations it
saves.

    z = x weight^T,   h = act(z + bias),   y = h down_weight^T + down_bias

``recompute`` of 0 saves z and h, 1 saves z, 2 saves neither. A gated MLP has z for gate and for up,
or one for both if ``weight`` packs them. Without ``down_weight`` the result is h. ``packed`` runs
our products, whose z of ``mlp`` includes the bias. Float32 weights beside a 16-bit x are copied to
its dtype, and the copies are saved.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Size, Tensor

from ..._errors import ArgumentValueError
from .._declare import Op, Way, Ways
from .._declare_arguments import Flag, Given, Integer, Result, Rows, Table
from .._parallel import ONCE, SUMMED, rows
from .._register import declare
from .._work import PRODUCT, products_with
from ..pointwise._ops import GATED, PLAIN
from . import _formula, _mlp, _ops
from ._arguments import Bias, Down, check_activation, empty_like_weight, hidden_features
from ._hints import hint_of_weights
from ._weights import copy_memory

_WEIGHT = Table("weight", of="x", or_float32=True)
_UP_WEIGHT = Table("up_weight", optional=True, of="x", or_float32=True)
_WITH_DOWN = (Down("down_weight", or_float32=True), Bias("down_bias", table="down_weight"))
_CHOICES = (Integer("activation"), Integer("recompute"), Flag("packed"))


# ---- formulas -----------------------------------------------------------------------------------


def _down(h: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return h if weight is None else _formula.linear(h, weight.to(h.dtype), bias)


def _mlp_formula(
    x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor | None,
    down_bias: Tensor | None, activation: int, recompute: int, packed: bool,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    h = _formula.linear_act(x, weight.to(x.dtype), bias, activation)
    return _down(h, down_weight, down_bias)


def _gated_mlp_formula(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, activation: int,
    recompute: int, packed: bool,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    up_weight = None if up_weight is None else up_weight.to(x.dtype)
    weight = weight.to(x.dtype)
    h, _, _ = _ops.gated_linear(x, weight, up_weight, bias, up_bias, activation, keep=False)
    return _down(h, down_weight, down_bias)


def _gated_mlp_stock(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, activation: int,
    recompute: int, packed: bool,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    gate, up = _formula.linear(x, weight.to(x.dtype), bias), None
    if up_weight is not None:
        up = _formula.linear(x, up_weight.to(x.dtype), up_bias)
    return _down(_GATES[activation](gate, up, None, None), down_weight, down_bias)


_GATES = [op.stock for op in GATED.values()]


# ---- splits -------------------------------------------------------------------------------------


def _parallel(op: Op, given: Given) -> Ways:
    """By rows, or by hidden features: each device then has terms of the result, to which one adds
    the last bias, or its columns where there is no second layer. A gate and up in one are not
    split."""
    if "up_weight" in given and given["up_weight"] is None:
        return rows(op, given)
    hidden: Way = {"weight": 2, "up_weight": 2, "bias": 1, "up_bias": 1}
    if given["down_weight"] is None:
        return [*rows(op, given), {**hidden, "y": 1}]
    return [*rows(op, given), {**hidden, "down_weight": 1, "down_bias": ONCE, "y": SUMMED}]


# ---- results ------------------------------------------------------------------------------------


def _shape_of_y(given: Given) -> Size:
    down = given["down_weight"]
    columns = hidden_features(given) if down is None else down.shape[0]
    return Size((*given["x"].shape[:-1], columns))


def _kept(most: int, columns: Callable[[Given], int], of: str) -> Callable[[Given], Tensor]:
    """Allocates a tensor that is saved up to a level, if the argument ``of`` is given."""

    def make(given: Given) -> Tensor:
        x: Tensor = given["x"]
        if given["recompute"] > most or given[of] is None:
            return x.new_empty(0)
        return x.new_empty((*x.shape[:-1], columns(given)))

    return make


def _like(name: str) -> Callable[[Given], Tensor]:
    return lambda given: empty_like_weight(given[name])


_MEMORY = {
    "h": _kept(0, hidden_features, "down_weight"),
    "weight_copy": copy_memory("weight"),
    "down_weight_copy": copy_memory("down_weight"),
    "dweight": _like("weight"),
    "ddown_weight": _like("down_weight"),
}
_of_weight = _kept(1, lambda given: given["weight"].shape[0], "weight")


# ---- checks -------------------------------------------------------------------------------------


def check_level(op: str, level: int) -> None:
    if level not in (0, 1, 2):
        raise ArgumentValueError(f"{op}: recompute is {level}, expected 0, 1 or 2")


def _check_choices(op: str, given: Given, activations: int) -> None:
    check_activation(op, given, activations)
    check_level(op, given["recompute"])
    if given["down_bias"] is not None and given["down_weight"] is None:
        raise ArgumentValueError(f"{op}: down_bias is present, expected none without down_weight")


def _check_mlp(op: str, given: Given) -> None:
    _check_choices(op, given, len(PLAIN))


def _check_gated_mlp(op: str, given: Given) -> None:
    _check_choices(op, given, len(GATED))
    rows, up = given["weight"].shape[0], given["up_weight"]
    if up is not None and up.shape[0] != rows:
        raise ArgumentValueError(
            f"{op}: up_weight has {up.shape[0]} rows, expected {rows} (the rows of weight)"
        )
    if up is None and rows % 2:
        raise ArgumentValueError(
            f"{op}: weight has {rows} rows, expected an even number (those of gate, then of up)"
        )
    if up is None and given["up_bias"] is not None:
        raise ArgumentValueError(
            f"{op}: up_bias is present, expected none (bias is of gate and up)"
        )


# ---- declarations -------------------------------------------------------------------------------

MLP = declare(
    "mlp",
    function="functional.mlp",
    kind=PRODUCT,
    parallel=_parallel,
    flops=products_with("weight", "down_weight"),
    unread=("bias", "down_bias"),
    arguments=(Rows("x"), _WEIGHT, Bias("bias"), *_WITH_DOWN, *_CHOICES),
    results=(
        Result("y", shape=_shape_of_y), Result("z", saved=True), Result("h", saved=True),
        Result("weight_copy", saved=True), Result("down_weight_copy", saved=True),
    ),
    backward=(
        "(dy, x, weight, bias, down_weight, down_bias, z, h, weight_copy, down_weight_copy,"
        " activation, recompute, packed, need_dx, need_dweight, need_dbias, need_ddown_weight,"
        " need_ddown_bias)"
        " -> dx, dweight, dbias, ddown_weight, ddown_bias"
    ),
    formula=_mlp_formula,
    check=_check_mlp,
    hint=hint_of_weights,
    memory={**_MEMORY, "z": _of_weight},
    has_inference=False,
    composed=(_mlp.mlp_forward, _mlp.mlp_backward),
    eager_backward=_mlp.mlp_backward_in_place,
    shown=lambda given: "linear_act" if given["down_weight"] is None else "mlp",
    text="act(x @ weight.T + bias) @ down_weight.T + down_bias",
)  # fmt: skip

GATED_MLP = declare(
    "gated_mlp",
    function="functional.gated_mlp",
    stock=_gated_mlp_stock,
    kind=PRODUCT,
    parallel=_parallel,
    flops=products_with("weight", "up_weight", "down_weight"),
    unread=("bias", "up_bias", "down_bias"),
    arguments=(
        Rows("x"), _WEIGHT, _UP_WEIGHT, Bias("bias"), Bias("up_bias", table="up_weight"),
        *_WITH_DOWN, *_CHOICES,
    ),
    results=(
        Result("y", shape=_shape_of_y), Result("gate", saved=True), Result("up", saved=True),
        Result("h", saved=True), Result("weight_copy", saved=True),
        Result("up_weight_copy", saved=True), Result("down_weight_copy", saved=True),
    ),
    backward=(
        "(dy, x, weight, up_weight, bias, up_bias, down_weight, down_bias, gate, up, h,"
        " weight_copy, up_weight_copy, down_weight_copy, activation, recompute, packed, need_dx,"
        " need_dweight, need_dup_weight, need_dbias, need_ddown_weight, need_ddown_bias)"
        " -> dx, dweight, dup_weight, dbias, dup_bias, ddown_weight, ddown_bias"
    ),
    flags={"need_dbias": ("bias", "up_bias")},
    formula=_gated_mlp_formula,
    check=_check_gated_mlp,
    hint=hint_of_weights,
    memory={
        **_MEMORY, "gate": _of_weight, "up": _kept(1, hidden_features, "up_weight"),
        "up_weight_copy": copy_memory("up_weight"), "dup_weight": _like("up_weight"),
    },
    has_inference=False,
    composed=(_mlp.gated_mlp_forward, _mlp.gated_mlp_backward),
    eager_backward=_mlp.gated_mlp_backward_in_place,
    shown=lambda given: "gated_linear" if given["down_weight"] is None else "gated_mlp",
    text="(act(gate) * up) @ down_weight.T, gate = x @ weight.T + bias, up of up_weight",
)  # fmt: skip
