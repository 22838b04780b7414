# SPDX-License-Identifier: MIT
"""Linear layers in PyTorch operations, differentiable any number of times."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..._torch import autocasts, with_autograd
from ..._torch import linear as torch_linear
from .._dtype import LOWERED, accumulate_dtype
from ..pointwise.table import ACTIVATIONS

Activate = Callable[[Tensor], Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Autocast lowers all three of them.
    if bias is None or bias.dtype is x.dtype or (autocasts(x) and x.dtype in LOWERED):
        return torch_linear(x, weight, bias)
    return (torch_linear(x, weight) + bias).to(x.dtype)


def linear_act(x: Tensor, weight: Tensor, bias: Tensor | None, activation: int) -> Tensor:
    return ACTIVATIONS[activation].formula(linear(x, weight, bias))


def as_rows(x: Tensor) -> Tensor:
    """``x`` as a matrix of rows. flatten() would fail in older versions of PyTorch's vmap."""
    if x.dim() == 2:
        return x
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, which takes a microsecond even where there is nothing to do."""
    return x if x.dtype is dtype else x.to(dtype)


def bias_gradient(dy: Tensor, dtype: torch.dtype) -> Tensor:
    return as_dtype(as_rows(dy).sum(0, dtype=accumulate_dtype(dy)), dtype)


def write_dweight(dweight: Tensor, dy: Tensor, x: Tensor, accumulate: bool) -> None:
    """Writes the gradient of a weight, or adds it to what is there, rounded once."""
    wide = accumulate_dtype(x)
    product = as_rows(dy).to(wide).t() @ as_rows(x).to(wide)
    dweight.copy_(dweight + product if accumulate else product)


def linear_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, need_dx: bool, need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx, dweight, dbias = (x.new_empty(0) for _ in range(3))
    if need_dx:
        dx = (dy @ weight).contiguous()
    if need_dweight:
        dweight = (as_rows(dy).t() @ as_rows(x)).contiguous()
    if need_dbias and bias is not None:
        dbias = bias_gradient(dy, bias.dtype)
    return dx, dweight, dbias


def slope_times(activate: Activate, z: Tensor, dy: Tensor) -> Tensor:
    """Computes dz by autograd of the activation."""
    again = torch.is_grad_enabled()
    with with_autograd(), torch.enable_grad():
        leaf = z.view_as(z) if again and z.requires_grad else z.detach().requires_grad_()
        y = activate(leaf)
        (dz,) = torch.autograd.grad(y, leaf, dy, create_graph=again)
    return dz


def linear_act_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor, activation: int,
    need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dz = slope_times(ACTIVATIONS[activation].formula, z, dy)
    return linear_gradient(dz, x, weight, bias, need_dx, need_dweight, need_dbias)


def linear_dact(
    dy: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor, activation: int, need_dbias: bool,
    need_h: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    formula = ACTIVATIONS[activation].formula
    dz = slope_times(formula, z, dy @ weight)
    dbias, h = (z.new_empty(0) for _ in range(2))
    if need_dbias and bias is not None:
        dbias = bias_gradient(dz, bias.dtype)
    if need_h:
        h = formula(z)
    return dz, dbias, h
