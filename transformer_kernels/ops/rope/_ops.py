# SPDX-License-Identifier: MIT
"""Declares the rotation (differentiable into new memory, and in place without gradients), and the
rotation after a norm of each head."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._library import direct
from .._declare import Kernels, Op, Way, Ways
from .._declare_arguments import Argument, Flag, Given, Indices, Integer, Number, Param, Result
from .._declare_checks import check_values
from .._declare_raw import declare_raw
from .._heads import empty_heads
from .._parallel import Joint, Part, Run
from .._register import declare
from . import _formula, _stock
from ._angles import hint_of_tables


def _empty_like(name: str, given: Given) -> Tensor:
    """Allocates like a tensor; without elements if it is absent or stands for an absent one."""
    x = given[name]
    if x is None:
        q: Tensor = given["q"]
        return q.new_empty(0)
    return x.new_empty(0) if _formula.is_absent(x) else empty_heads(x, *x.shape)


_POSITIONS = (
    Indices("position_ids", optional=True, of="q"),
    Indices("offsets", optional=True, of="q"),
    Argument("cu_seqlens", optional=True),
    Integer("offset"),
    Integer("section_time"),
    Integer("section_height"),
    Flag("interleaved"),
)
_ANGLES = "cos, sin, " + ", ".join(argument.name for argument in _POSITIONS)


def _parallel(op: Op, given: Given) -> Ways:
    """By heads, by batch or by time: the places of packed tokens belong together."""
    tensors = ("q", "k", *op.returned)
    by_heads = dict.fromkeys(tensors, 2)
    if given["q"].dim() != 4:
        return [by_heads]
    by_time: Way = dict.fromkeys(tensors, 3) | {"position_ids": 1}
    if given["position_ids"] is None and given["cos"] is not None:
        by_time = Joint(by_time, "q", _count_on)
    return [dict.fromkeys(tensors, 4) | {"position_ids": 2, "offsets": 1}, by_heads, by_time]


def _count_on(part: Part, call: Run, given: Given) -> tuple[Tensor, ...]:
    """The results of a process's time, whose positions count on from the first one's."""
    return call({**given, "offset": given["offset"] + part.start})


def _triton() -> Kernels:
    from .rope_triton import rope_backward, rope_forward

    return Kernels(rope_forward, rope_backward, rope_forward)


ROPE = declare(
    "rope",
    function="functional.rope",
    stock=_stock.rope,
    parallel=_parallel,
    arguments=(
        Argument("q"),
        Argument("k", optional=True),
        Argument("cos"),
        Argument("sin"),
        *_POSITIONS,
    ),
    results=(Result("q_rotated", "q"), Result("k_rotated", "q")),
    backward=f"(dq_rotated, dk_rotated, {_ANGLES}) -> dq, dk",
    formula=_formula.forward,
    gradient=_formula.backward,
    memory={
        "q_rotated": lambda given: _empty_like("q", given),
        "k_rotated": lambda given: _empty_like("k", given),
        "dq": lambda given: _empty_like("dq_rotated", given),
        "dk": lambda given: _empty_like("dk_rotated", given),
    },
    jagged=False,
    hint=hint_of_tables,
    triton=_triton,
    text="a, b = a * cos - b * sin, b * cos + a * sin",
)


# ---- in place -----------------------------------------------------------------------------------


def _rotate_in_place(*arguments: Any) -> None:
    given = ROPE.given(arguments)
    check_values(ROPE, given)
    for x, rotated in zip((given["q"], given["k"]), _formula.forward(*arguments), strict=True):
        if x is not None:
            x.copy_(rotated)


_IN_PLACE = declare_raw(
    ROPE.public_schema.replace(
        "rope(Tensor q, Tensor? k", "rope_(Tensor(a!) q, Tensor(b!)? k"
    ).partition(" -> ")[0]
    + " -> ()",
    of=ROPE,
    reference=_rotate_in_place,
    fake=lambda *_: None,
)
rotate_in_place = direct(_IN_PLACE)


# ---- behind a norm ------------------------------------------------------------------------------


def _norm_triton() -> Kernels:
    from .qk_norm_triton import qk_norm_backward, qk_norm_forward

    return Kernels(qk_norm_forward, qk_norm_backward, qk_norm_forward)


QK_NORM = declare(
    "qk_norm",
    function="functional.qk_norm",
    stock=_stock.qk_norm,
    parallel=_parallel,
    arguments=(
        Argument("q"),
        Argument("k", optional=True),
        Param("q_weight", of="q"),
        Param("k_weight", of="q", beside="k"),
        Argument("cos", optional=True),
        Argument("sin", optional=True),
        *_POSITIONS,
        Number("eps", least=0.0),
    ),
    results=(Result("q_normed", "q"), Result("k_normed", "q")),
    backward=(
        f"(dq_normed, dk_normed, q, k, q_weight, k_weight, {_ANGLES}, eps, need_dq_weight,"
        " need_dk_weight) -> dq, dk, dq_weight, dk_weight"
    ),
    formula=_formula.norm_forward,
    memory={
        "q_normed": lambda given: _empty_like("q", given),
        "k_normed": lambda given: _empty_like("k", given),
        "dq": lambda given: _empty_like("q", given),
        "dk": lambda given: _empty_like("k", given),
    },
    jagged=False,
    hint=hint_of_tables,
    triton=_norm_triton,
    text="rope(x / sqrt(mean(x * x) + eps) * weight)",
)
