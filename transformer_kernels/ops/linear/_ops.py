# SPDX-License-Identifier: MIT
"""Declares the linear layers. Activations are given as row numbers of the table of activations."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Size, Tensor, nn
from torch.nn import functional as F

from .._declare import Kernels, Op, Way, Ways
from .._declare_arguments import Given, Integer, Result, Rows, Table
from .._declare_raw import declare_raw
from .._parallel import ONCE, SUMMED, rows
from .._register import declare
from .._work import PRODUCT, products_with
from ..pointwise._ops import GATED
from . import _formula
from ._arguments import Bias, empty_like_weight
from ._hints import hint_of_weights

OPERANDS = (Rows("x"), Table("weight", of="x"), Bias("bias"))


def shape_of_y(given: Given) -> Size:
    return Size((*given["x"].shape[:-1], given["weight"].shape[0]))


def _empty_z(given: Given) -> Tensor:
    x: Tensor = given["x"]
    return x.new_empty(shape_of_y(given))


def _z(given: Given) -> Tensor:
    return _formula.linear(given["x"], given["weight"], given["bias"])


def like_weight(given: Given) -> Tensor:
    return empty_like_weight(given["weight"])


BY_COLUMNS: Way = {"weight": 2, "bias": 1, "y": 1}


BY_TERMS: Way = {"x": 1, "weight": 1, "bias": ONCE, "y": SUMMED}


def by_operands(op: Op, given: Given) -> Ways:
    """By rows, by columns, or by terms, to which one device adds the bias."""
    return [*rows(op, given), BY_COLUMNS, BY_TERMS]


def _parallel_act(op: Op, given: Given) -> Ways:
    """By rows or by columns: an activation needs whole sums."""
    return [*rows(op, given), BY_COLUMNS]


def _triton(name: str) -> Kernels:
    from . import linear_act_triton

    kernels: Any = getattr(linear_act_triton, name)
    return Kernels(*kernels)


LINEAR = declare(
    "linear",
    function="functional.linear",
    kind=PRODUCT,
    parallel=by_operands,
    flops=products_with("weight"),
    unread=("bias",),
    arguments=OPERANDS,
    results=(Result("y", shape=shape_of_y),),
    backward="(dy, x, weight, bias, need_dx, need_dweight, need_dbias) -> dx, dweight, dbias",
    formula=_formula.linear,
    gradient=_formula.linear_gradient,
    memory={"dweight": like_weight},
    triton=partial(_triton, "LINEAR"),
    replaces=(F.linear, nn.Linear),
    hint=hint_of_weights,
    text="x @ weight.T + bias",
)

# Writes the gradient of a weight to memory that is there, or adds it: of the dtype of x or float32.
LINEAR_DWEIGHT = declare_raw(
    "linear_dweight_(Tensor(a!) dweight, Tensor dy, Tensor x, bool accumulate) -> ()",
    of=LINEAR,
    flops=products_with("dweight", rows=("dy",)),
    reference=_formula.write_dweight,
    fake=lambda *_: None,
)

LINEAR_ACT = declare(
    "linear_act",
    function="functional.linear_act",
    kind=PRODUCT,
    parallel=_parallel_act,
    flops=products_with("weight"),
    unread=("bias",),
    arguments=(*OPERANDS, Integer("activation")),
    results=(Result("y", shape=shape_of_y), Result("z", shape=shape_of_y, saved=True)),
    backward=(
        "(dy, x, weight, bias, z, activation, need_dx, need_dweight, need_dbias)"
        " -> dx, dweight, dbias"
    ),
    formula=_formula.linear_act,
    statistics=_z,
    gradient=_formula.linear_act_gradient,
    memory={"z": _empty_z, "dweight": like_weight},
    triton=partial(_triton, "LINEAR_ACT"),
    text="act(x @ weight.T + bias)",
)


def _fake_dact(
    dy: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor, activation: int,  # noqa: ARG001
    need_dbias: bool, need_h: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dbias = z.new_empty(0) if bias is None or not need_dbias else bias.new_empty(bias.shape)
    return z.new_empty(z.shape), dbias, z.new_empty(z.shape if need_h else 0)


# Computes the gradient at the activation in front of a layer, the gradient of the activation's
# bias, and the activation's value.
LINEAR_DACT = declare_raw(
    "linear_dact(Tensor dy, Tensor weight, Tensor? bias, Tensor z, int activation, bool need_dbias,"
    " bool need_h) -> (Tensor dz, Tensor dbias, Tensor h)",
    of=LINEAR_ACT,
    flops=products_with("weight", rows=("dy",)),
    reference=_formula.linear_dact,
    fake=_fake_dact,
)


GATED_FORMULAS = [op.formula for op in GATED.values()]


def gated_linear(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, activation: int, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    gate = _formula.linear(x, weight, None)
    up = None if up_weight is None else _formula.linear(x, up_weight, None)
    y: Tensor = GATED_FORMULAS[activation](gate, up, bias, up_bias)
    none = x.new_empty(0)
    return y, gate if keep else none, none if up is None or not keep else up


def _fake_gated(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,  # noqa: ARG001
    up_bias: Tensor | None, activation: int, keep: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    leading, lines = x.shape[:-1], weight.shape[0]
    y = x.new_empty((*leading, lines // 2 if up_weight is None else lines))
    gate = x.new_empty((*leading, lines) if keep else 0)
    return y, gate, x.new_empty((*leading, lines) if keep and up_weight is not None else 0)


# Computes gate and up of the same x, and act(gate) * up. Without ``up_weight``, the weight, the
# bias and the saved gate hold both.
GATED_LINEAR = declare_raw(
    "gated_linear_forward(Tensor x, Tensor weight, Tensor? up_weight, Tensor? bias,"
    " Tensor? up_bias, int activation, bool keep) -> (Tensor y, Tensor gate, Tensor up)",
    of=LINEAR_ACT,
    flops=products_with("weight", "up_weight"),
    reference=gated_linear,
    fake=_fake_gated,
)


def linear_dgated(
    dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor, bias: Tensor | None,
    up_bias: Tensor | None, activation: int, need_h: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    def h(gate: Tensor, up: Tensor) -> Tensor:
        value: Tensor = GATED_FORMULAS[activation](gate, up, bias, up_bias)
        return value

    dh = dy @ weight
    dgate = _formula.slope_times(lambda z: h(z, up), gate, dh)
    dup = _formula.slope_times(lambda z: h(gate, z), up, dh)
    return dgate, dup, h(gate, up) if need_h else gate.new_empty(0)


def _fake_dgated(
    dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor, bias: Tensor | None,  # noqa: ARG001
    up_bias: Tensor | None, activation: int, need_h: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    like = gate.shape
    return gate.new_empty(like), gate.new_empty(like), gate.new_empty(like if need_h else 0)


# Computes the gradients at a gate in front of a layer, and the gated product.
LINEAR_DGATED = declare_raw(
    "linear_dgated(Tensor dy, Tensor weight, Tensor gate, Tensor up, Tensor? bias, Tensor? up_bias,"
    " int activation, bool need_h) -> (Tensor dgate, Tensor dup, Tensor h)",
    of=LINEAR_ACT,
    flops=products_with("weight", rows=("dy",)),
    reference=linear_dgated,
    fake=_fake_dgated,
)
