# SPDX-License-Identifier: MIT
"""Declares cross-entropy of a linear layer, whose logits are in memory one chunk of rows at a time.

    z = x linear_weight^T + linear_bias        p = softmax(capped z)
    loss = cross_entropy(z, target)
    entropy = -sum(p log p)                    accuracy = (argmax(z) = target)

Entropy and accuracy are reduced over the rows that are not ignored, all of the same weight. Both
passes are composed of other ops: products, and cross-entropy with its gradient in place.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._errors import ArgumentTypeError, ArgumentValueError, renamed
from ..._torch import is_batched
from .._declare import Op, Ways
from .._declare_arguments import (
    Flag,
    Given,
    Indices,
    Integer,
    Number,
    Result,
    Rows,
    Table,
)
from .._declare_checks import as_declared, check_values
from .._declare_fake import fake_inference
from .._declare_formula import gradients_of
from .._declare_raw import declare_raw
from .._dtype import accumulate_dtype
from .._kinds import on_memory
from .._parallel import WHOLE, Joint
from .._register import declare
from .._work import PRODUCT, products_with
from ..linear._arguments import Bias
from ..loss._ops import CROSS_ENTROPY, empty_loss, scale_gradient, ways_of_rows
from . import _chunks, _formula, _split

_NEEDED = ("need_dx", "need_dlinear_weight", "need_dlinear_bias")
_X = re.compile(r"\bx\b")  # cross-entropy's name of the logits
X, TARGET = Rows("x"), Indices("target", per_row=True)


def _check(op: str, given: Given) -> None:
    """Asks C++ whether it takes the loss of the logits, whose memory is one number here."""
    x, weight = given["x"], given["linear_weight"]
    if weight.shape[0] == 0:
        raise ArgumentValueError(
            f"{op}: linear_weight has shape {tuple(weight.shape)}, expected a class or more"
        )
    logits = x.new_empty(()).expand(*x.shape[:-1], weight.shape[0])
    try:
        check_values(CROSS_ENTROPY, {**given, "x": logits, "probabilities": None})
    except (ArgumentValueError, ArgumentTypeError) as error:
        raise renamed(op, error, lambda words: re.sub(_X, "logits", words)) from None
    if given["chunk_bytes"] < 0:
        raise ArgumentValueError(
            f"{op}: chunk_bytes is {given['chunk_bytes']}, expected at least 1, or 0 (the default)"
        )


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _chunks.loss_alone(LINEAR_CROSS_ENTROPY.given(arguments))


def _backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    values = dict(zip(LINEAR_CROSS_ENTROPY.backward_inputs, inputs, strict=True))
    need_dx, need_dweight, need_dbias = (values[name] for name in _NEEDED)
    return _chunks.gradients_alone(values, (need_dx, need_dweight, need_dbias))


def _empty_statistic(flag: str, given: Given) -> Tensor:
    """Allocates a result that has elements only if ``flag`` asks for it."""
    wide = {**given, "wide": True}
    return empty_loss(wide) if given[flag] else empty_loss(wide).new_empty(0)


def _parallel(op: Op, given: Given) -> Ways:
    """By rows; or by classes, whose entropy and accuracy nobody merges."""
    by_rows = ways_of_rows(given, "x", results=("loss", "entropy", "accuracy"))
    if given["with_entropy"] or given["with_accuracy"]:
        return by_rows
    classes = {"linear_weight": 2, "linear_bias": 1} | dict.fromkeys(op.returned, WHOLE)
    return [*by_rows, Joint(classes, "linear_weight", partial(_split.by_classes, op))]


LINEAR_CROSS_ENTROPY = declare(
    "linear_cross_entropy",
    function="functional.linear_cross_entropy",
    stock=_formula.stock,
    kind=PRODUCT,
    parallel=_parallel,
    flops=products_with("linear_weight"),
    arguments=(
        X, Table("linear_weight", of="x", or_float32=True),
        Bias("linear_bias", table="linear_weight"), TARGET,
        Bias("weight", table="linear_weight"), Integer("ignore_index"), Number("label_smoothing"),
        Number("z_loss", finite=True), Number("softcap", least=0.0, finite=True),
        Integer("reduction"), Flag("wide"), Integer("chunk_bytes"), Flag("float32_sums"),
        Flag("packed"), Flag("with_entropy"), Flag("with_accuracy"),
    ),
    results=(Result("loss"), Result("entropy"), Result("accuracy")),
    memory={
        "loss": empty_loss,
        "entropy": partial(_empty_statistic, "with_entropy"),
        "accuracy": partial(_empty_statistic, "with_accuracy"),
    },
    backward=(
        "(dloss?, dentropy?, daccuracy?, x, linear_weight, linear_bias, target, weight,"
        " ignore_index, label_smoothing, z_loss, softcap, reduction, chunk_bytes, float32_sums,"
        " packed, need_dx, need_dlinear_weight, need_dlinear_bias) -> dx, dlinear_weight,"
        " dlinear_bias"
    ),
    formula=_formula.forward,
    composed=(_forward, _backward),
    check=_check,
    jagged=False,
    replaces=tuple(f for f in (getattr(F, "linear_cross_entropy", None),) if f is not None),
    text="cross_entropy(x @ linear_weight.T + linear_bias, target)",
)  # fmt: skip


# ---- the gradients in the forward pass ----------------------------------------------------------

_GRADIENTS = ("x", "linear_weight", "linear_bias")


def _loss_and_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    *values, need_dx, need_dweight, need_dbias = arguments
    given = LINEAR_CROSS_ENTROPY.given(values)
    check_values(LINEAR_CROSS_ENTROPY, given)
    return _chunks.loss_and_gradients(given, (need_dx, need_dweight, need_dbias))


def _fake_loss_and_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    *values, need_dx, need_dweight, need_dbias = arguments
    given = LINEAR_CROSS_ENTROPY.given(values)
    needed = dict(zip(_GRADIENTS, (need_dx, need_dweight, need_dbias), strict=True))
    return *fake_inference(LINEAR_CROSS_ENTROPY, *values), *(
        given[name].new_empty(given[name].shape) if needed[name] else given["x"].new_empty(0)
        for name in _GRADIENTS
    )


_loss_and_gradients_op = declare_raw(
    "linear_cross_entropy_gradient("
    + ", ".join(argument.schema for argument in LINEAR_CROSS_ENTROPY.arguments)
    + ", "
    + ", ".join(f"bool {name}" for name in _NEEDED)
    + ") -> (Tensor loss, Tensor entropy, Tensor accuracy, Tensor dx, Tensor dlinear_weight,"
    " Tensor dlinear_bias)",
    of=LINEAR_CROSS_ENTROPY,
    reference=on_memory("linear_cross_entropy", _loss_and_gradients, *LINEAR_CROSS_ENTROPY.names),
    fake=_fake_loss_and_gradients,
    composed=True,
)


def _scaled(gradient: Tensor, dloss: Tensor) -> Tensor:
    return (gradient * dloss.to(accumulate_dtype(gradient))).to(gradient.dtype)


class _InForward(torch.autograd.Function):
    """A loss whose forward pass computes the gradients, for an incoming gradient of 1; beside it
    the entropy and the accuracy, which have none. The backward pass scales them in place and gives
    them to the caller: a second backward pass computes them again, and one that will be
    differentiated uses the formula."""

    @staticmethod
    def forward(ctx: Any, needed: tuple[bool, ...], *arguments: Any) -> tuple[Tensor, ...]:
        loss, entropy, accuracy, *gradients = _loss_and_gradients_op(*arguments, *needed)
        ctx.mark_non_differentiable(entropy, accuracy)
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        ctx.arguments = [None if isinstance(x, Tensor) else x for x in arguments]
        ctx.is_tensor = [isinstance(x, Tensor) for x in arguments]
        ctx.needed = needed
        if torch.compiler.is_compiling():
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(*tensors)
            ctx.gradients = gradients
        return loss, entropy, accuracy

    @staticmethod
    def backward(ctx: Any, dloss: Tensor, *_: Any) -> Any:
        if torch.compiler.is_compiling():
            found = [_scaled(gradient, dloss) for gradient in ctx.saved_tensors]
        elif torch.is_grad_enabled() or ctx.gradients is None:
            return None, *_gradients_again(ctx, dloss)
        elif is_batched(dloss):
            found, ctx.gradients = [_scaled(g, dloss) for g in ctx.gradients], None
        else:
            found, ctx.gradients = ctx.gradients, None
            for gradient, needed in zip(found, ctx.needed, strict=True):
                if needed:
                    scale_gradient(gradient, dloss.to(accumulate_dtype(gradient)))
        dx, dweight, dbias = (g if n else None for g, n in zip(found, ctx.needed, strict=True))
        return (None, dx, dweight, dbias, *([None] * (len(ctx.arguments) - 3)))


def _gradients_again(ctx: Any, dloss: Tensor) -> list[Tensor | None]:
    tensors = iter(ctx.saved_tensors)
    arguments = [
        next(tensors) if is_tensor else value
        for is_tensor, value in zip(ctx.is_tensor, ctx.arguments, strict=True)
    ]
    op = LINEAR_CROSS_ENTROPY
    needed = dict.fromkeys(op.names, False) | dict(zip(_GRADIENTS, ctx.needed, strict=True))
    incoming = {"dloss": dloss, "dentropy": None, "daccuracy": None}
    return gradients_of(op, op.raw, {**op.given(arguments), **incoming}, needed)


def call_in_forward(arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """``LINEAR_CROSS_ENTROPY.call`` for a call that needs gradients, which the forward pass
    computes."""
    op = LINEAR_CROSS_ENTROPY
    given = op.given(arguments)
    needed = tuple(given[name] is not None and given[name].requires_grad for name in _GRADIENTS)
    results: tuple[Tensor, Tensor, Tensor] = _InForward.apply(needed, *as_declared(op, arguments))
    return results
