# SPDX-License-Identifier: MIT
"""Declares the experts, csrc/include/transformer_kernels/moe/experts.h: an MLP each, of the rows of
its tokens, and the weighted sum of what they return. Without ``up_weight`` the weight of a gated
activation packs gate and up, and so does the saved ``gate``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._declare import Op, Way, Ways
from .._declare_arguments import Argument, Flag, Given, Indices, Integer, Result, Table
from .._parallel import ONCE, SUMMED, Joint, Part, Run
from .._register import declare
from .._work import PRODUCT
from ..linear._grouped import multiplied
from ..pointwise._ops import GATED, PLAIN
from ._dispatch_formula import moe_unpermute

_PLAIN = [op.formula for op in PLAIN.values()]
_GATED = [op.formula for op in GATED.values()]


def moe_experts(
    x: Tensor, weights: Tensor, offsets: Tensor, tokens: Tensor, places: Tensor, weight: Tensor,
    up_weight: Tensor | None, bias: Tensor | None, up_bias: Tensor | None, down_weight: Tensor,
    down_bias: Tensor | None, activation: int, gated: bool,
) -> Tensor:  # fmt: skip
    rows = x[tokens.clamp(min=0).long()]
    up = None
    if gated and up_weight is None:
        weight, up_weight = weight.chunk(2, 1)
    gate = multiplied(rows, weight, bias, offsets)
    if up_weight is not None:
        up = multiplied(rows, up_weight, up_bias, offsets)
    h = _GATED[activation](gate, up, None, None) if gated else _PLAIN[activation](gate, None)
    return moe_unpermute(multiplied(h, down_weight, down_bias, offsets), places, weights)


# ---- results ------------------------------------------------------------------------------------


def _rows_of_tokens(given: Given) -> tuple[int, int]:
    return given["x"].shape[0], given["down_weight"].shape[1]


def _gate(given: Given) -> Tensor:
    gate: Tensor = given["x"].new_empty(given["places"].numel(), given["weight"].shape[1])
    return gate


def _up(given: Given) -> Tensor:
    if given["up_weight"] is None:
        none: Tensor = given["x"].new_empty(0)
        return none
    return _gate(given)


# ---- costs and splits ---------------------------------------------------------------------------


def _flops(pass_: str, given: Given) -> float:
    """Counts a product of each place with each weight of its expert, and in the backward pass one
    a gradient."""
    names = {"weight": "need_dweight", "up_weight": "need_dweight"}
    names["down_weight"] = "need_ddown_weight"
    total = 0.0
    for name, flag in names.items():
        if given.get(name) is not None:
            products = 1 if pass_ == "forward" else 1 + int(given.get(flag, True))
            total += products * given[name][:1].numel()
    return 2.0 * given["places"].numel() * total


def _parallel(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By experts; by columns of the result; or by hidden features, where gate and up are not in one
    weight, and one device adds the last bias."""
    of_expert = ("weight", "up_weight", "down_weight")
    experts: Way = dict.fromkeys(of_expert, 3) | dict.fromkeys(("bias", "up_bias", "down_bias"), 2)
    columns: Way = {"down_weight": 2, "down_bias": 1, "y": 1}
    hidden: Way = {"weight": 2, "up_weight": 2, "bias": 1, "up_bias": 1, "down_weight": 1}
    by_experts = Joint({**experts, "y": SUMMED}, "weight", _of_own_experts)
    if given["gated"] and given["up_weight"] is None:
        return [columns, by_experts]
    return [columns, {**hidden, "down_bias": ONCE, "y": SUMMED}, by_experts]


def _of_own_experts(part: Part, call: Run, given: Given) -> tuple[Tensor, ...]:
    """The sum over a process's experts: their rows come first, and others' behind, as dropped."""
    offsets, tokens, places = (given[name] for name in ("offsets", "tokens", "places"))
    count, size = len(given["weight"]), places.numel()
    if not count:
        return (_nothing(given),)
    own = offsets[part.start : part.start + count + 1]
    own, begin, end = own - own[0], own[0], own[-1]
    rows = (torch.arange(size, device=tokens.device) + begin) % max(size, 1)
    is_own = torch.arange(size, device=tokens.device) < end - begin
    tokens = torch.where(is_own, tokens[rows], -1).to(tokens.dtype)
    behind = (torch.where(places < 0, -1 - places, places) - begin) % max(size, 1)
    is_own = (places >= begin) & (places < end)
    places = torch.where(is_own, places - begin, -1 - behind).to(places.dtype)
    local = {"offsets": own.contiguous(), "tokens": tokens, "places": places}
    return call({**given, **local})


def _nothing(given: Given) -> Tensor:
    """The sum over no experts, with gradients of 0, for processes act together."""
    names = ("x", "weights", "weight", "up_weight", "bias", "up_bias", "down_weight", "down_bias")
    tensors = [given[name] for name in names if given[name] is not None]
    zero = sum(x.flatten()[:0].sum() for x in tensors)
    nothing: Tensor = given["x"].new_zeros(_rows_of_tokens(given)) + zero
    return nothing


def _like(name: str) -> Callable[[Given], Tensor]:
    return lambda given: torch.empty_like(given[name], memory_format=torch.contiguous_format)


MOE_EXPERTS = declare(
    "moe_experts",
    function="functional.moe_experts",
    kind=PRODUCT,
    parallel=_parallel,
    flops=_flops,
    unread=("bias", "up_bias"),
    arguments=(
        Table("x"), Argument("weights"), Indices("offsets"), Indices("tokens"), Indices("places"),
        Argument("weight"), Argument("up_weight", optional=True), Argument("bias", optional=True),
        Argument("up_bias", optional=True), Argument("down_weight"),
        Argument("down_bias", optional=True), Integer("activation"), Flag("gated"),
    ),
    results=(
        Result("y", shape=_rows_of_tokens), Result("gate", saved=True), Result("up", saved=True),
    ),
    backward=(
        "(dy, x, weights, offsets, tokens, places, weight, up_weight, bias, up_bias, down_weight,"
        " down_bias, gate, up, activation, gated, need_dx, need_dweights, need_dweight, need_dbias,"
        " need_ddown_weight, need_ddown_bias)"
        " -> dx, dweights, dweight, dup_weight, dbias, dup_bias, ddown_weight, ddown_bias"
    ),
    flags={"need_dweight": ("weight", "up_weight"), "need_dbias": ("bias", "up_bias")},
    formula=moe_experts,
    memory={
        "gate": _gate, "up": _up,
        **{f"d{n}": _like(n) for n in ("weight", "up_weight", "down_weight")},
    },
    has_inference=False,
    jagged=False,
    text="sum over k of weights[t, k] * MLP of expert indices[t, k] (x[t])",
)  # fmt: skip
