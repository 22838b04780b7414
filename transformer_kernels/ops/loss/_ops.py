# SPDX-License-Identifier: MIT
"""Declares cross-entropy of rows of logits, and the pass that computes its gradient too.

    z = x, or softcap * tanh(x / softcap)        lse = log(sum(exp(z)))
    a = weight * (label_smoothing / C + (1 - label_smoothing) * q)
    loss = sum(a * (lse - z)) + z_loss * v * lse^2

q is 1 for the row's label, or a row of probabilities; v is the label's weight, or 1. A mean divides
by the sum of v. Label smoothing: Szegedy et al. 2016 (arXiv:1512.00567); z-loss: Chowdhery et al.
2022 (arXiv:2204.02311); soft cap: Gemma Team 2024 (arXiv:2408.00118).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._library import direct
from .._declare import Formula, Kernels, Op, Way, Ways
from .._declare_arguments import (
    Flag,
    Given,
    Indices,
    Integer,
    Like,
    Number,
    Param,
    Result,
    Rows,
    saved_rows,
)
from .._declare_fake import fake_inference
from .._declare_formula import formula_forward
from .._declare_raw import declare_raw
from .._dtype import accumulate_dtype
from .._parallel import SUMMED, WHOLE, Joint, leading
from .._register import declare
from . import _formula, _split, _stock

_FORWARD = (
    "Tensor? target, Tensor? probabilities, Tensor? weight, int ignore_index,"
    " float label_smoothing, float z_loss, float softcap, int reduction, bool wide"
)


def empty_loss(given: Given) -> Tensor:
    x = given["x"]
    shape = x.shape[:-1] if given["reduction"] == _formula.NONE else ()
    return x.new_empty(shape, dtype=accumulate_dtype(x) if given["wide"] else x.dtype)


def _total_shape(given: Given) -> tuple[int, ...]:
    return () if given["reduction"] == _formula.MEAN else (0,)


def _empty_total(given: Given) -> Tensor:
    x = given["x"]
    mean = given["reduction"] == _formula.MEAN
    return x.new_empty(_total_shape(given), dtype=accumulate_dtype(x) if mean else x.dtype)


def _gradients(backward: Formula, values: Given, needed: Given) -> dict[str, Tensor]:
    """The gradients of x and of probabilities."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # Tensors that kernels save are detached from the arguments, so they are recomputed.
        again = zip(CROSS_ENTROPY.saved, _formula.statistics(values), strict=True)
        values = {**values, **dict(again)}
    found = {}
    if needed["x"]:
        found["x"] = backward(*(values[name] for name in CROSS_ENTROPY.backward_inputs))
    if needed["probabilities"]:
        found["probabilities"] = _formula.gradient_of_probabilities(values)
    return found


def _parallel(op: Op, given: Given) -> Ways:
    """By rows or by classes."""
    of_classes = {"x": 1, "probabilities": 1, "loss": WHOLE}
    return [
        *ways_of_rows(given, "x", "probabilities"),
        Joint(of_classes, "x", partial(_split.by_classes, op)),
    ]


def ways_of_rows(given: Given, *rows: str, results: tuple[str, ...] = ("loss",)) -> Ways:
    """By rows, whose means divide by what all devices count."""
    reduction = given["reduction"]
    ways: list[Way] = []
    for dim in leading(given["x"]):
        way = dict.fromkeys(rows, dim) | {"target": dim - 1}
        if reduction == _formula.MEAN:
            mean = way | dict.fromkeys(results, WHOLE)
            ways.append(Joint(mean, "x", _split.mean_by_rows))
        else:
            summed = reduction == _formula.SUM
            ways.append(way | dict.fromkeys(results, SUMMED if summed else dim - 1))
    return ways


def _triton() -> Kernels:
    from .cross_entropy_triton import (
        cross_entropy_backward,
        cross_entropy_forward,
        cross_entropy_inference,
    )

    return Kernels(cross_entropy_forward, cross_entropy_backward, cross_entropy_inference)


CROSS_ENTROPY = declare(
    "cross_entropy",
    function="functional.cross_entropy",
    stock=_stock.cross_entropy,
    parallel=_parallel,
    arguments=(
        Rows("x"), Indices("target", optional=True, per_row=True),
        Like("probabilities", optional=True), Param("weight"), Integer("ignore_index"),
        Number("label_smoothing"), Number("z_loss", finite=True),
        Number("softcap", least=0.0, finite=True), Integer("reduction"), Flag("wide"),
    ),
    one_of=("target", "probabilities"),
    results=(
        Result("loss"), saved_rows("top"), saved_rows("spread"), saved_rows("share"),
        Result("total", shape=_total_shape, saved=True),
    ),
    memory={"loss": empty_loss, "total": _empty_total},
    backward=(
        "(dloss, x, target, probabilities, weight, top, spread, share, total, ignore_index,"
        " label_smoothing, z_loss, softcap, reduction) -> dx"
    ),
    more=("probabilities",),
    gradients=_gradients,
    formula=_formula.forward,
    statistics=_formula.statistics,
    gradient=_formula.backward,
    jagged=False,
    triton=_triton,
    replaces=(F.cross_entropy, nn.CrossEntropyLoss),
    text="log(sum(exp(x))) - x[target]",
)  # fmt: skip


# ---- the gradient in the forward pass -----------------------------------------------------------


def _loss_and_gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    loss, *saved = formula_forward(CROSS_ENTROPY, *arguments)
    values = {**CROSS_ENTROPY.given(arguments), "dloss": torch.ones_like(loss)}
    values |= zip(CROSS_ENTROPY.saved, saved, strict=True)
    return loss, _formula.backward(*(values[name] for name in CROSS_ENTROPY.backward_inputs))


def _loss_with_gradient_in_place(x: Tensor, *others: Any) -> Tensor:
    loss, dx = _loss_and_gradient(x, *others)
    x.copy_(dx)
    return loss


def _scale_formula(x: Tensor, by: Tensor) -> None:
    x.mul_(by)


def _fake_loss_and_gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    return fake_inference(CROSS_ENTROPY, *arguments), arguments[0].new_empty(arguments[0].shape)


def _fake_scale(x: Tensor, by: Tensor) -> None:
    """The fake kernel, which returns nothing."""


loss_and_gradient = direct(
    declare_raw(
        f"cross_entropy_gradient(Tensor x, {_FORWARD}) -> (Tensor loss, Tensor dx)",
        of=CROSS_ENTROPY,
        reference=_loss_and_gradient,
        fake=_fake_loss_and_gradient,
    )
)
loss_with_gradient_in_place = direct(
    declare_raw(
        f"cross_entropy_gradient_(Tensor(a!) x, {_FORWARD}) -> Tensor loss",
        of=CROSS_ENTROPY,
        reference=_loss_with_gradient_in_place,
        fake=partial(fake_inference, CROSS_ENTROPY),
    )
)
scale_gradient = direct(
    declare_raw(
        "scale_gradient_(Tensor(a!) x, Tensor by) -> ()",
        of=CROSS_ENTROPY,
        reference=_scale_formula,
        fake=_fake_scale,
    )
)
