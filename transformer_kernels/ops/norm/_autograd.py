# SPDX-License-Identifier: MIT
"""Differentiation of the norms, shared by every backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._library import public_op
from ..._torch import eager_apply
from . import _formula
from ._kernels import FORWARD_ARGUMENTS, Kernels


def _gradients(
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    stats: tuple[Tensor, ...],
    weight: Tensor | None,
    options: tuple[Kernels, float, bool, torch.dtype | None],
    need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    kernels, eps, zero_centered, bias_dtype = options  # bias_dtype: where there is no weight
    if need_dbias and bias_dtype not in (None, x.dtype):
        # A bias without a weight: a weight of 1 tells the kernel of which dtype dbias is.
        weight, zero_centered = torch.ones(x.shape[-1], dtype=bias_dtype, device=x.device), False
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # create_graph: the formula takes the kernel's place, statistics included, because the
        # kernel has no derivative and what it saved is cut off from x.
        dx, dweight, dbias = _formula.backward(
            kernels.center, dy, dsum, x, _formula.statistics(x, eps, kernels.center), weight,
            zero_centered, need_dweight, need_dbias,
        )  # fmt: skip
    else:
        dx, dweight, dbias = kernels.backward(
            dy, dsum, x, *stats, weight, zero_centered, need_dweight, need_dbias
        )
    return dx, dweight if need_dweight else None, dbias if need_dbias else None


def _dtype(bias: Tensor | None) -> torch.dtype | None:
    return None if bias is None else bias.dtype


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        zero_centered: bool,
        kernels: Kernels,
    ) -> Tensor:
        results = kernels.forward(x, weight, bias, eps, zero_centered)
        ctx.save_for_backward(x, weight, *results[1:])
        bias_dtype = None if weight is not None else _dtype(bias)
        ctx.options = (kernels, eps, zero_centered, bias_dtype)
        return results[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *stats = ctx.saved_tensors
        _, need_dweight, need_dbias, *_ = ctx.needs_input_grad
        dx, dweight, dbias = _gradients(
            dy, None, x, tuple(stats), weight, ctx.options, need_dweight, need_dbias
        )
        return dx, dweight, dbias, None, None, None


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        zero_centered: bool,
        kernels: Kernels,
    ) -> tuple[Tensor, Tensor]:
        y, s, *stats = kernels.add_forward(x, residual, weight, bias, eps, zero_centered)
        ctx.save_for_backward(s, weight, *stats)
        ctx.options = (kernels, eps, zero_centered, None if weight is not None else _dtype(bias))
        ctx.set_materialize_grads(False)
        return y, s

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return dsum, dsum, None, None, None, None, None
        s, weight, *stats = ctx.saved_tensors
        _, _, need_dweight, need_dbias, *_ = ctx.needs_input_grad
        dx, dweight, dbias = _gradients(
            dy, dsum, s, tuple(stats), weight, ctx.options, need_dweight, need_dbias
        )
        return dx, dx, dweight, dbias, None, None, None


apply_norm = eager_apply(Norm)
apply_add_norm = eager_apply(AddNorm)


def define_public(name: str, raw: Kernels) -> Any:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
        x, weight, bias, eps, zero_centered = inputs
        ctx.save_for_backward(x, weight)
        ctx.options = (raw, eps, zero_centered, None if weight is not None else _dtype(bias))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        _, need_dweight, need_dbias, *_ = ctx.needs_input_grad
        _, eps, zero_centered, _ = ctx.options
        # The op returns y alone, so its backward pass computes the statistics once more.
        _, *stats = raw.forward(x, weight, None, eps, zero_centered)
        dx, dweight, dbias = _gradients(
            dy, None, x, tuple(stats), weight, ctx.options, need_dweight, need_dbias
        )
        return dx, dweight, dbias, None, None

    def fake(x: Tensor, *_: Any) -> Tensor:
        return x.new_empty(x.shape)

    return public_op(
        f"{name}(Tensor x, {FORWARD_ARGUMENTS}) -> Tensor",
        impl=raw.inference,
        fake=fake,
        setup_context=setup_context,
        backward=backward,
    )
