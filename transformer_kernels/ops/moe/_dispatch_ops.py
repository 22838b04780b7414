# SPDX-License-Identifier: MIT
"""Declares the dispatch: the sort of tokens by expert, and the rows that move by it."""

from __future__ import annotations

import torch
from torch import Tensor

from .._declare import Op, Ways
from .._declare_arguments import Argument, Given, Indices, Result, Table
from .._declare_raw import declare_raw
from .._register import declare
from . import _dispatch_formula as _formula


def _by_columns(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By columns."""
    return ({"x": 1, "y": 1},)


def _rows_of_places(given: Given) -> tuple[int, int]:
    rows = given["x"] if given.get("x") is not None else given["dy"]
    return given["places"].numel(), rows.shape[1]


def _rows_of_tokens(given: Given) -> tuple[int, int]:
    rows = given["x"] if given.get("x") is not None else given["dy"]
    return given["places"].shape[0], rows.shape[1]


def _gradient_of_tokens(given: Given) -> Tensor:
    dx: Tensor = given["dy"].new_empty(given["places"].shape[0], given["dy"].shape[1])
    return dx


MOE_PERMUTE = declare(
    "moe_permute",
    function="functional.moe_permute",
    parallel=_by_columns,
    arguments=(Table("x"), Indices("places")),
    results=(Result("y", shape=_rows_of_places),),
    backward="(dy, places) -> dx",
    formula=_formula.moe_permute,
    gradient=_formula.moe_permute_gradient,
    memory={"dx": _gradient_of_tokens},
    jagged=False,
    text="y[places[t, k]] = x[t]",
)

MOE_UNPERMUTE = declare(
    "moe_unpermute",
    function="functional.moe_unpermute",
    parallel=_by_columns,
    arguments=(Table("x"), Indices("places"), Argument("weights", optional=True)),
    results=(Result("y", shape=_rows_of_tokens),),
    backward="(dy, x, places, weights, need_dx, need_dweights) -> dx, dweights",
    formula=_formula.moe_unpermute,
    gradient=_formula.moe_unpermute_gradient,
    jagged=False,
    text="y[t] = sum over k of weights[t, k] * x[places[t, k]]",
)


def _fake_sort(
    indices: Tensor, num_experts: int, capacity: int  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        indices.new_empty(num_experts + 1, dtype=torch.int32),
        indices.new_empty(indices.numel(), dtype=torch.int32),
        indices.new_empty(indices.shape, dtype=torch.int32),
    )


moe_sort = declare_raw(
    "moe_sort(Tensor indices, int num_experts, int capacity)"
    " -> (Tensor offsets, Tensor tokens, Tensor places)",
    of=MOE_PERMUTE,
    reference=_formula.moe_sort,
    fake=_fake_sort,
)
