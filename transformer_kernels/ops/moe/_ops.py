# SPDX-License-Identifier: MIT
"""Declares the ops of a mixture of experts: csrc/include/transformer_kernels/moe has their
formulas."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._declare import Op, Way, Ways
from .._declare_arguments import Flag, Given, Integer, Number, Param, Result, Seed, Table
from .._dtype import accumulate_dtype
from .._parallel import SUMMED
from .._register import declare
from . import _formula, _stock


def _by_tokens(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By tokens, or by sequences where those have sums."""
    tokens: Way = {"x": 2, "weights": 2, "indices": 2}
    if given["sequences"] == 0:
        return [tokens]
    if given["sequences"] == 1:
        return [{**tokens, "importance": SUMMED, "lse": 1}]
    return [{**tokens, "importance": 2, "lse": 1, "sequences": 1}]


def _chosen_shape(given: Given) -> tuple[int, int]:
    return given["x"].shape[0], given["top_k"]


def _importance_shape(given: Given) -> tuple[int, int]:
    return given["sequences"], given["x"].shape[1]


def _lse_shape(given: Given) -> tuple[int]:
    return (given["x"].shape[0] if given["sequences"] else 0,)


def _numbers(name: str) -> Callable[[Given], Tensor]:
    def make(given: Given) -> Tensor:
        x: Tensor = given["x"]
        return x.new_empty(_SHAPES[name](given), dtype=accumulate_dtype(x))

    return make


def _indices(given: Given) -> Tensor:
    indices: Tensor = given["x"].new_empty(_chosen_shape(given), dtype=torch.int32)
    return indices


_SHAPES = {"weights": _chosen_shape, "importance": _importance_shape, "lse": _lse_shape}

MOE_ROUTER = declare(
    "moe_router",
    function="functional.moe_router",
    stock=_stock.moe_router,
    parallel=_by_tokens,
    arguments=(
        Table("x"), Param("expert_bias"), Seed("seed", draws="jitter"), Integer("top_k"),
        Integer("groups"), Integer("top_groups"), Integer("sequences"), Integer("score"),
        Flag("renormalize"), Number("scale", finite=True), Number("jitter", least=0.0, most=1.0),
        Number("noise", least=0.0, finite=True),
    ),
    results=(
        Result("weights", shape=_chosen_shape),
        Result("indices", shape=_chosen_shape, has_gradient=False),
        Result("importance", shape=_importance_shape),
        Result("lse", shape=_lse_shape),
    ),
    memory={name: _numbers(name) for name in _SHAPES} | {"indices": _indices},
    backward=(
        "(dweights?, dimportance?, dlse?, x, seed, indices, score, renormalize, scale, jitter,"
        " noise) -> dx"
    ),
    formula=_formula.moe_router,
    has_inference=False,
    jagged=False,
    text="scale * score(x)[indices], indices = top_k(score(x) + expert_bias)",
)  # fmt: skip
