# SPDX-License-Identifier: MIT
"""A linear layer that computes the activation of its result ahead, for a caller who shows both.

The two results are two nodes of autograd, as those of two modules are. The gradient of the layer's
result passes through it, where hooks see it; and a result that is changed in place only makes the
activation useless, which nobody then reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._library import direct
from ..._torch import eager_apply
from ..pointwise._ops import PLAIN
from ..pointwise.table import ACTIVATIONS
from . import _formula
from ._choice import refusal
from ._ops import LINEAR, LINEAR_ACT
from .linear import NUMBERS, _as_multiplied

_forward, _gradients = direct(LINEAR_ACT.raw.forward), direct(LINEAR.raw.backward)
_slopes = {name: direct(op.raw.backward) for name, op in PLAIN.items()}


class _Layer(torch.autograd.Function):
    """The layer's result. The activation of it is appended to ``made``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str,
        made: list[Tensor],
    ) -> Tensor:  # fmt: skip
        y, z = _forward(x, weight, bias, NUMBERS[activation])
        made.append(y)
        ctx.save_for_backward(x, weight, bias)
        result: Tensor = z
        return result

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[:3]
        gradients = _formula.linear_gradient if torch.is_grad_enabled() else _gradients
        found = gradients(dz, *ctx.saved_tensors, *needs)
        return *(dx if need else None for dx, need in zip(found, needs, strict=True)), None, None


class _Activation(torch.autograd.Function):
    """The activation of ``z``, the one tensor of ``made``."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, activation: str, made: list[Tensor]) -> Tensor:
        ctx.save_for_backward(z)
        ctx.activation = activation
        return made.pop()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula = ACTIVATIONS[NUMBERS[ctx.activation]].formula
            return _formula.slope_times(formula, z, dy), None, None
        return _slopes[ctx.activation](dy, z, None, False, False)[0], None, None


_layer, _activation = eager_apply(_Layer), eager_apply(_Activation)


def linear_and_act(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor] | None:
    """Computes ``z = x @ weight.T + bias`` and ``act(z)`` in one kernel.

    Only for eager calls of plain tensors. Arguments are those of
    :func:`transformer_kernels.functional.linear_act`.

    Returns:
        ``z``, and the numbers of ``act(z)`` for :func:`as_activation`; None where PyTorch's product
        is faster, behind which the activation is a kernel of its own.
    """
    if refusal("linear_act", x, weight, activated=True) is not None:
        return None
    x, weight, bias = _as_multiplied(x, weight, bias)
    if weight.dtype is not x.dtype:
        return None
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        y, z = _forward(x, weight, bias, NUMBERS[activation])
        return z, y
    made: list[Tensor] = []
    z = _layer(x, weight, bias, activation, made)
    return z, made[0]


def as_activation(z: Tensor, y: Tensor, activation: str) -> Tensor:
    """The numbers ``y`` as the activation of ``z``, to which the gradient goes."""
    if not (torch.is_grad_enabled() and z.requires_grad):
        return y
    result: Tensor = _activation(z, activation, [y])
    return result
