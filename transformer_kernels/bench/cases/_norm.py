# SPDX-License-Identifier: MIT
"""What the cases of layer_norm and rms_norm share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.measure.case import Arguments, Build, Function
from transformer_kernels.measure.timing import Call

EPS = 1e-5


def through_parameters_dtype(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's norm beside float32 parameters: through float32, as under autocast."""

    def run(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        if x.dtype == weight.dtype:
            return norm(x, weight, *bias)
        return norm(x.to(weight.dtype), weight, *bias).to(x.dtype)

    return run


def with_residual(norm: Function) -> Function:
    """(x, residual, *parameters) -> (y, sum), as two ops."""

    def run(x: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm(total, *parameters), total

    return run


def with_residual_gradient(build: Build) -> Build:
    """The backward pass of the norm of the sum, then the gradient that goes past the norm."""

    def run(arguments: Arguments) -> Call:
        norm, dsum = build({**arguments, "x": arguments["sum"]}), arguments["dsum"]

        def call() -> tuple[Tensor, ...]:
            dx, *parameters = norm()
            return (dx + dsum, *parameters)

        return call

    return run


def save_sum(save: Callable[[Arguments], Arguments]) -> Callable[[Arguments], Arguments]:
    def run(arguments: Arguments) -> Arguments:
        total = arguments["x"] + arguments["residual"]
        return {"sum": total, **save({**arguments, "x": total})}

    return run


def bind_backward(backward: Function, statistics: tuple[str, ...], need_dbias: bool) -> Build:
    """Binds a function with the signature of the raw backward ops."""

    def build(arguments: Arguments) -> Call:
        saved = arguments.get("sum", arguments["x"])
        return partial(
            backward,
            arguments["dy"],
            arguments.get("dsum"),
            saved,
            *(arguments[name] for name in statistics),
            arguments["weight"],
            arguments.get("bias"),
            False,
            True,
            need_dbias,
        )

    return build


def formula_backward(
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor,
    need_dbias: bool,
) -> tuple[Any, ...]:
    """The raw backward op in plain PyTorch, for torch.compile to fuse."""
    gradient = widen(dy)
    centered = widen(x) if mean is None else widen(x) - mean[:, None]
    normalized = centered * rstd[:, None]
    scaled = gradient * widen(weight)
    dx = scaled - normalized * (scaled * normalized).mean(-1, keepdim=True)
    if mean is not None:
        dx = dx - scaled.mean(-1, keepdim=True)
    dx = dx * rstd[:, None]
    if dsum is not None:
        dx = dx + widen(dsum)
    dweight = (gradient * normalized).sum(0).to(weight.dtype)
    if not need_dbias:
        return dx.to(x.dtype), dweight
    return dx.to(x.dtype), dweight, gradient.sum(0).to(weight.dtype)


def widen(x: Tensor) -> Tensor:
    """In the dtype in which statistics are kept."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rstd_of(mean_square: Tensor) -> Tensor:
    return torch.rsqrt(mean_square + EPS)
