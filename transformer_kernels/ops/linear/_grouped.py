# SPDX-License-Identifier: MIT
"""Declares the layers of groups of rows, each group with a weight of its own. Their formulas are
loops over the groups, as csrc/include/transformer_kernels/linear/grouped_linear.h has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ..._torch import differs_between_samples
from .._declare import Op, Ways
from .._declare_arguments import Argument, Given, Indices, Result, Table
from .._declare_raw import declare_raw
from .._parallel import ONCE, SUMMED
from .._register import declare
from .._work import PRODUCT, FlopsOf
from ._ops import GATED_FORMULAS, LINEAR, LINEAR_ACT


def groups_of(offsets: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields each group's number and its rows."""
    ends = offsets.tolist()
    for group, (begin, end) in enumerate(pairwise(ends)):
        yield group, slice(begin, end)


def gathered(x: Tensor, index: Tensor | None) -> Tensor:
    return x if index is None else x[index.long()]


def scaled(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else (x * factors[:, None]).to(x.dtype)


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor) -> Tensor:
    """Each group's rows times its weight, (N, K), from the right; rows of no group are zeros."""
    if differs_between_samples(offsets):
        return _multiplied_by_masks(x, weight, bias, offsets)
    parts, end = [], 0
    for group, own in groups_of(offsets):
        y = x[own] @ weight[group].t()
        parts.append(y if bias is None else (y + bias[group]).to(y.dtype))
        end = own.stop
    return torch.cat([*parts, x.new_zeros(len(x) - end, weight.shape[1])])


def _multiplied_by_masks(
    x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor
) -> Tensor:  # fmt: skip
    """:func:`multiplied` where groups end elsewhere in each sample of torch.func.vmap: every row is
    multiplied with every weight, those of other groups as zeros, and is kept in its own."""
    rows = torch.arange(len(x), device=x.device)
    total = x.new_zeros(len(x), weight.shape[1])
    for group in range(len(weight)):
        own = ((rows >= offsets[group]) & (rows < offsets[group + 1])).unsqueeze(1)
        y = torch.where(own, x, 0) @ weight[group].t()
        y = y if bias is None else (y + bias[group]).to(y.dtype)
        total = torch.where(own, y, total)
    return total


def grouped_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor, x_rows: Tensor | None,
    factors: Tensor | None,
) -> Tensor:  # fmt: skip
    return scaled(multiplied(gathered(x, x_rows), weight, bias, offsets), factors)


def grouped_linear_gradient(
    dy: Tensor, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, offsets: Tensor,
    x_rows: Tensor | None, dy_rows: Tensor | None, factors: Tensor | None, need_dx: bool,
    need_dweight: bool, need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dz = scaled(gathered(dy, dy_rows), factors)
    dx = dweight = dbias = dy.new_empty(0)
    if need_dx and weight is not None:
        dx = multiplied(dz, weight.transpose(1, 2), None, offsets)
    if need_dweight and x is not None:
        terms = gathered(x, x_rows)
        dweight = torch.stack([dz[own].t() @ terms[own] for _, own in groups_of(offsets)])
    if need_dbias:
        dbias = torch.stack([dz[own].sum(0) for _, own in groups_of(offsets)])
        dbias = dbias if bias is None else dbias.to(bias.dtype)
    return dx, dweight, dbias


def _fake_gradient(
    dy: Tensor, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, offsets: Tensor,
    x_rows: Tensor | None, dy_rows: Tensor | None, factors: Tensor | None,  # noqa: ARG001
    need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows = len(dy if dy_rows is None else dy_rows)
    dx = dweight = dbias = dy.new_empty(0)
    groups, cols = offsets.numel() - 1, dy.shape[1]
    if need_dx and weight is not None:
        dx = dy.new_empty(rows, weight.shape[2])
    if need_dweight and x is not None:
        dweight = dy.new_empty(groups, cols, x.shape[1])
    if need_dbias:
        dbias = (dy if bias is None else bias).new_empty(groups, cols)
    return dx, dweight, dbias


def grouped_gated_linear(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, offsets: Tensor, x_rows: Tensor | None, activation: int, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, none = gathered(x, x_rows), x.new_empty(0)
    gate = multiplied(rows, weight, bias, offsets)
    up = None if up_weight is None else multiplied(rows, up_weight, up_bias, offsets)
    y: Tensor = GATED_FORMULAS[activation](gate, up, None, None)
    return y, gate if keep else none, none if up is None or not keep else up


def _fake_gated(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,  # noqa: ARG001
    up_bias: Tensor | None, offsets: Tensor, x_rows: Tensor | None,  # noqa: ARG001
    activation: int, keep: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, lines = len(x if x_rows is None else x_rows), weight.shape[1]
    y = x.new_empty(rows, lines // 2 if up_weight is None else lines)
    gate = x.new_empty((rows, lines) if keep else 0)
    return y, gate, x.new_empty((rows, lines) if keep and up_weight is not None else 0)


def grouped_linear_dgated(
    dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor, offsets: Tensor, dy_rows: Tensor | None,
    factors: Tensor | None, activation: int, need_h: bool, need_dfactors: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    da = multiplied(gathered(dy, dy_rows), weight.transpose(1, 2), None, offsets)
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (gate, up)]
        a = GATED_FORMULAS[activation](*leaves, None, None)
        dgate, dup = torch.autograd.grad(a, leaves, scaled(da, factors))
    a = a.detach()
    wide = torch.float64 if gate.dtype is torch.float64 else torch.float32
    dfactors = (da.to(wide) * a).sum(1) if need_dfactors else gate.new_empty(0)
    return dgate, dup, scaled(a, factors) if need_h else gate.new_empty(0), dfactors


def _fake_dgated(
    dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor, offsets: Tensor,  # noqa: ARG001
    dy_rows: Tensor | None, factors: Tensor | None, activation: int,  # noqa: ARG001
    need_h: bool, need_dfactors: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = torch.float64 if gate.dtype is torch.float64 else torch.float32
    like = gate.shape
    h = gate.new_empty(like if need_h else 0)
    dfactors = (
        torch.empty(like[0], dtype=wide, device=gate.device) if need_dfactors else gate.new_empty(0)
    )
    return gate.new_empty(like), gate.new_empty(like), h, dfactors


def _products(*weights: str, rows: tuple[str, ...]) -> FlopsOf:
    """Counts the operations of each row with its group's matrix of each of the weights."""

    def flops(pass_: str, given: Given) -> float:  # noqa: ARG001
        count = len(next(given[name] for name in rows if given.get(name) is not None))
        present = (given[name] for name in weights if given.get(name) is not None)
        return 2.0 * count * sum(weight[:1].numel() for weight in present)

    return flops


def _of_layer(pass_: str, given: Given) -> float:
    """Counts a product of each row with its weight, and in the backward pass one a gradient."""
    wanted = (given.get("need_dx", True), given.get("need_dweight", True))
    products = 1 if pass_ == "forward" else sum(wanted)
    return 2.0 * products * len(given["x"]) * given["weight"][:1].numel()


def _split_layer(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By columns of the result; or by terms, to which one device adds the bias."""
    return ({"weight": 2, "bias": 1, "y": 1}, {"x": 1, "weight": 1, "bias": ONCE, "y": SUMMED})


def _gradients(pass_: str, given: Given) -> float:  # noqa: ARG001
    """Counts a product of each row of dy for each gradient that is there."""
    dy, rows = given["dy"], given.get("dy_rows")
    count = len(dy if rows is None else rows)
    wanted = [g for g in (given.get("dx"), given.get("dweight")) if g is not None and g.numel()]
    return 2.0 * count * dy.shape[-1] * sum(g.shape[-1] for g in wanted)


GROUPED_LINEAR = declare_raw(
    "grouped_linear_forward(Tensor x, Tensor weight, Tensor? bias, Tensor offsets, Tensor? x_rows,"
    " Tensor? factors) -> Tensor y",
    of=LINEAR,
    flops=_products("weight", rows=("x_rows", "x")),
    reference=grouped_linear,
    fake=lambda x, weight, bias, offsets, x_rows, factors: x.new_empty(  # noqa: ARG005
        len(x if x_rows is None else x_rows), weight.shape[1]
    ),
)

# The gradient of x has a row for each row of the groups, whatever x_rows says.
GROUPED_LINEAR_BACKWARD = declare_raw(
    "grouped_linear_backward(Tensor dy, Tensor? x, Tensor? weight, Tensor? bias, Tensor offsets,"
    " Tensor? x_rows, Tensor? dy_rows, Tensor? factors, bool need_dx, bool need_dweight,"
    " bool need_dbias) -> (Tensor dx, Tensor dweight, Tensor dbias)",
    of=LINEAR,
    flops=_gradients,
    reference=grouped_linear_gradient,
    fake=_fake_gradient,
    pass_="backward",
)

# Without ``up_weight`` each group's weight, and the saved gate, hold both.
GROUPED_GATED_LINEAR = declare_raw(
    "grouped_gated_linear_forward(Tensor x, Tensor weight, Tensor? up_weight, Tensor? bias,"
    " Tensor? up_bias, Tensor offsets, Tensor? x_rows, int activation, bool keep)"
    " -> (Tensor y, Tensor gate, Tensor up)",
    of=LINEAR_ACT,
    flops=_products("weight", "up_weight", rows=("x_rows", "x")),
    reference=grouped_gated_linear,
    fake=_fake_gated,
)

# Computes the gradients at a gate in front of a layer with a factor for each row, the gated product
# times its factor, and the factors' gradients.
GROUPED_LINEAR_DGATED = declare_raw(
    "grouped_linear_dgated(Tensor dy, Tensor weight, Tensor gate, Tensor up, Tensor offsets,"
    " Tensor? dy_rows, Tensor? factors, int activation, bool need_h, bool need_dfactors)"
    " -> (Tensor dgate, Tensor dup, Tensor h, Tensor dfactors)",
    of=LINEAR_ACT,
    flops=_products("weight", rows=("gate",)),
    reference=grouped_linear_dgated,
    fake=_fake_dgated,
)

GROUPED_LAYER = declare(
    "grouped_layer",
    shown="grouped_linear",
    function="functional.grouped_linear",
    kind=PRODUCT,
    parallel=_split_layer,
    flops=_of_layer,
    unread=("bias",),
    arguments=(Table("x"), Argument("weight"), Argument("bias", optional=True), Indices("offsets")),
    results=(Result("y", shape=lambda given: (given["x"].shape[0], given["weight"].shape[1])),),
    backward=(
        "(dy, x, weight, bias, offsets, need_dx, need_dweight, need_dbias) -> dx, dweight, dbias"
    ),
    formula=multiplied,
    memory={"dweight": lambda given: torch.empty_like(
        given["weight"], memory_format=torch.contiguous_format
    )},
    has_inference=False,
    jagged=False,
    text="y[i] = x[i] @ weight[g].T + bias[g] for each row i of group g",
)  # fmt: skip
