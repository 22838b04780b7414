# SPDX-License-Identifier: MIT
"""Attention under autograd: the output and the log-sum-exp of tensors and options."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._library import public_op
from ..._torch import eager_apply
from . import _formula
from ._formula import Options
from ._kernels import ARGUMENTS, RAW, Kernels, fake_forward

_TENSORS = 10  # of ARGUMENTS; numbers follow
_ARGUMENTS = _TENSORS + len(Options._fields)


def _gradients(
    ctx: Any, kernels: Kernels, dout: Tensor | None, dlse: Tensor | None
) -> list[Tensor | None]:
    """One for each of ARGUMENTS, and for what follows them."""
    *tensors, out, lse = ctx.saved_tensors
    bias, sinks = tensors[3], tensors[6]
    with_bias, with_sinks = ctx.needs_input_grad[3], ctx.needs_input_grad[6]
    if dout is None:
        dout = torch.zeros_like(out)
    # With create_graph the formula takes the kernel's place: the kernel has no derivative.
    differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    backward = _formula.backward if differentiable else kernels.backward
    deterministic = ctx.deterministic or torch.are_deterministic_algorithms_enabled()
    dq, dk, dv, dbias, dsinks = backward(
        dout, dlse, out, lse, *tensors, *ctx.options, with_bias, with_sinks, deterministic
    )
    gradients: list[Tensor | None] = [dq, dk, dv, *[None] * (_ARGUMENTS + 1 - 3)]
    if with_bias:
        gradients[3] = dbias.to(bias.dtype).reshape(bias.shape)
    if with_sinks:
        gradients[6] = dsinks.to(sinks.dtype)
    return gradients


class Attention(torch.autograd.Function):
    """Takes ARGUMENTS, whether gradients have to be repeatable, and the kernels."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *call, deterministic, kernels = arguments
        out, lse = kernels.forward(*call)
        ctx.save_for_backward(*call[:_TENSORS], out, lse)
        ctx.set_materialize_grads(False)
        ctx.options = call[_TENSORS:]
        ctx.deterministic = deterministic
        ctx.kernels = kernels
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*_gradients(ctx, ctx.kernels, dout, dlse), None)


apply_eagerly = eager_apply(Attention)


def _public_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], *output)
    ctx.set_materialize_grads(False)
    *ctx.options, ctx.deterministic = inputs[_TENSORS:]


def _public_backward(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None
) -> tuple[Tensor | None, ...]:
    return tuple(_gradients(ctx, RAW, dout, dlse))


public = public_op(
    f"attention({ARGUMENTS}, bool deterministic) -> (Tensor, Tensor)",
    impl=lambda *arguments: RAW.forward(*arguments[:-1]),
    fake=fake_forward,
    setup_context=_public_setup,
    backward=_public_backward,
)
