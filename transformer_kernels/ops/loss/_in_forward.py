# SPDX-License-Identifier: MIT
"""Cross-entropy whose forward pass also computes the gradient, which its backward pass returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from ..._torch import is_batched
from .._dtype import accumulate_dtype
from ._formula import NONE
from ._ops import CROSS_ENTROPY, loss_and_gradient, loss_with_gradient_in_place, scale_gradient


class _InForward(torch.autograd.Function):
    """A loss whose forward pass computes the gradient, for an incoming gradient of 1. The backward
    pass scales it in place if the incoming one differs, and gives it to the caller: there is no
    second backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, in_place: bool, *others: Any) -> Tensor:
        if in_place:
            loss: Tensor = loss_with_gradient_in_place(x, *others)
            torch.autograd.graph.increment_version(x)
            ctx.dx = x.detach()
        else:
            loss, ctx.dx = loss_and_gradient(x, *others)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "cross_entropy: gradient is made in the forward pass and has no derivative,"
                " expected create_graph=False (gradient='backward' has one)"
            )
        if ctx.dx is None:
            raise RuntimeError(
                "cross_entropy: gradient is made in the forward pass and has been handed out,"
                " expected one backward pass (gradient='backward' serves more)"
            )
        dx, ctx.dx = ctx.dx, None
        if is_batched(dloss):
            dx = (dx * dloss.to(accumulate_dtype(dx))).to(dx.dtype)
        else:
            scale_gradient(dx, dloss)
        return (dx, None, *([None] * (len(CROSS_ENTROPY.arguments) - 1)))


def call_in_forward(in_place: bool, arguments: tuple[Any, ...]) -> Tensor:
    """``CROSS_ENTROPY.call`` for an x that requires a gradient, which the forward pass computes."""
    given = CROSS_ENTROPY.given(arguments)
    x, way = given["x"], "in_place" if in_place else "forward"
    if given["reduction"] == NONE:
        raise ArgumentValueError(
            f"cross_entropy: reduction is 'none', expected 'mean' or 'sum' (gradient={way!r})"
        )
    if given["probabilities"] is not None and given["probabilities"].requires_grad:
        raise ArgumentValueError(
            "cross_entropy: target requires a gradient, expected one that does not"
            f" (gradient={way!r})"
        )
    if in_place and x.is_leaf:
        raise ArgumentValueError(
            "cross_entropy: x is a leaf that requires a gradient, expected the result of an"
            " operation (gradient='in_place' writes the gradient over it)"
        )
    loss: Tensor = _InForward.apply(x, in_place, *arguments[1:])
    return loss
