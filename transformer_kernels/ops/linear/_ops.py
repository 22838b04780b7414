# SPDX-License-Identifier: MIT
"""The linear layers' ops. An activation is the number of its row in the table of activations."""

from __future__ import annotations

from torch import Size, Tensor, nn
from torch.nn import functional as F

from ..._library import raw_op
from .._declare import declare
from .._declare_arguments import Given, Integer, Result, Rows, Table
from ..pointwise.table import ACTIVATIONS
from . import _formula
from ._arguments import Bias, check_activation, empty_like_weight

_OPERANDS = (Rows("x"), Table("weight", of="x"), Bias("bias"))


def _shape_of_y(given: Given) -> Size:
    return Size((*given["x"].shape[:-1], given["weight"].shape[0]))


def _empty_z(given: Given) -> Tensor:
    x: Tensor = given["x"]
    return x.new_empty(_shape_of_y(given))


def _z(given: Given) -> Tensor:
    return _formula.linear(given["x"], given["weight"], given["bias"])


def _like_weight(given: Given) -> Tensor:
    return empty_like_weight(given["weight"])


def _check(op: str, given: Given) -> None:
    check_activation(op, given, len(ACTIVATIONS))


LINEAR = declare(
    "linear",
    arguments=_OPERANDS,
    results=(Result("y", shape=_shape_of_y),),
    backward="(dy, x, weight, bias, need_dx, need_dweight, need_dbias) -> dx, dweight, dbias",
    formula=_formula.linear,
    gradient=_formula.linear_gradient,
    memory={"dweight": _like_weight},
    replaces=(F.linear, nn.Linear),
    text="x @ weight.T + bias",
)

LINEAR_ACT = declare(
    "linear_act",
    arguments=(*_OPERANDS, Integer("activation")),
    results=(Result("y", shape=_shape_of_y), Result("z", shape=_shape_of_y, saved=True)),
    backward=(
        "(dy, x, weight, bias, z, activation, need_dx, need_dweight, need_dbias)"
        " -> dx, dweight, dbias"
    ),
    formula=_formula.linear_act,
    statistics=_z,
    gradient=_formula.linear_act_gradient,
    check=_check,
    memory={"z": _empty_z, "dweight": _like_weight},
    text="act(x @ weight.T + bias)",
)


def _fake_dact(
    dy: Tensor, weight: Tensor, z: Tensor, activation: int, need_h: bool  # noqa: ARG001
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return z.new_empty(z.shape), z.new_empty(z.shape if need_h else 0)


# The gradient at an activation in front of a layer, and the activation's value.
LINEAR_DACT = raw_op(
    "linear_dact(Tensor dy, Tensor weight, Tensor z, int activation, bool need_h)"
    " -> (Tensor dz, Tensor h)",
    reference=_formula.linear_dact,
    fake=_fake_dact,
)
