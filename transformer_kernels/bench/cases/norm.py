# SPDX-License-Identifier: MIT
"""layer_norm, with weight and bias, and rms_norm, with a weight: alone, of a sum, and of a sum with
dropout, whose dropped elements differ between providers (see ``pointwise.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.cases.pointwise import P, drawing, dropped, nearer_if_kept
from transformer_kernels.bench.rivals import EPS, liger, quack
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Draw,
    Function,
    bind,
    differentiate,
)
from transformer_kernels.measure.derive import derive
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing import reference

_aten = torch.ops.aten
_LAYER, _RMS = ("weight", "bias"), ("weight",)


def _of_sum(norm: Function) -> Function:
    def run(x: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        return norm(x + residual, *parameters), x + residual

    return run


def _with_residual_gradient(build: Build) -> Build:
    """Runs the backward pass of the norm of a sum, then adds the gradient that bypasses the
    norm."""

    def run(arguments: Arguments) -> Call:
        norm, dsum = build({**arguments, "x": arguments["sum"]}), arguments["dsum"]

        def call() -> tuple[Tensor, ...]:
            dx, *parameters = norm()
            return (dx + dsum, *parameters)

        return call

    return run


# ---- torch's raw ops, on what its own forward pass saves ----------------------------------------


def _torch_layer_norm_backward(arguments: Arguments) -> Call:
    dy, x, weight, bias = (arguments[name] for name in ("dy", "x", "weight", "bias"))
    size, saved = x.shape[-1:], x.to(weight.dtype)
    _, mean, rstd = _aten.native_layer_norm(saved, size, weight, bias, EPS)

    def call() -> Any:
        dx, dweight, dbias = _aten.native_layer_norm_backward(
            dy.to(weight.dtype), saved, size, mean, rstd, weight, bias, [True, True, True]
        )
        return dx.to(x.dtype), dweight, dbias

    return call


def _stock_rms_norm(x: Tensor, weight: Tensor) -> Any:
    return DECLARED["rms_norm"].stock(x, weight, None, EPS, False)


def _torch_rms_norm_backward(arguments: Arguments) -> Call:
    """Calls the raw op, or autograd of the formula where the device has none."""
    dy, x, weight = (arguments[name] for name in ("dy", "x", "weight"))
    if not (x.is_cuda and hasattr(_aten, "_fused_rms_norm_backward")):
        return differentiate(_stock_rms_norm, ("x", "weight"), ("dy",))(arguments)
    size, saved = x.shape[-1:], x.to(weight.dtype)
    _, rstd = _aten._fused_rms_norm(saved, size, weight, EPS)

    def call() -> Any:
        dx, dweight = _aten._fused_rms_norm_backward(
            dy.to(weight.dtype), saved, size, rstd, weight, [True, True]
        )
        return dx.to(x.dtype), dweight

    return call


# ---- the cases ----------------------------------------------------------------------------------


def _kept(pass_: str, arguments: Arguments, results: Sequence[Tensor]) -> Tensor:
    if pass_ != "forward":
        return results[0] != 0
    return nearer_if_kept(results[1], *(arguments[name] for name in ("x", "residual", "x_bias")))


def _behind_dropout(member: str, parameters: tuple[str, ...]) -> Case:
    norm = partial(getattr(reference, member), eps=EPS)

    def exact(x: Tensor, residual: Tensor, x_bias: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        *given, kept = rest
        s = dropped(x + x_bias, kept) + residual
        return norm(s, *given), s

    return derive(
        DECLARED[f"bias_dropout_add_{member}"], "norm/dropout_norm", ("x", "residual"),
        ("x_bias", *parameters), fixed={"eps": EPS, **drawing()}, reference=exact,
        draw=Draw(P, _kept, in_sum=True),
    )  # fmt: skip


def _case(member: str, name: str, ours: Function, parameters: tuple[str, ...], **of: Any) -> Case:
    exact = partial(getattr(reference, member), eps=EPS)
    of_sum = name != member
    return derive(
        DECLARED[name], f"norm/{member}", ("x", "residual") if of_sum else ("x",), parameters,
        fixed={"eps": EPS}, reference=_of_sum(exact) if of_sum else exact, ours=ours,
        compiled="gradient", **of,
    )  # fmt: skip


OPS = (
    _behind_dropout("layer_norm", _LAYER),
    _behind_dropout("rms_norm", _RMS),
    _case(
        "layer_norm", "layer_norm",
        lambda x, w, b, **on: F.layer_norm(x, x.shape[-1:], w, b, EPS, **on), _LAYER,
        rivals={"liger": liger.layer_norm},
        forward={"quack": quack.with_float32_parameters(bind(quack.layer_norm, "x", *_LAYER))},
        backwards={
            "torch": _torch_layer_norm_backward,
            "liger": liger.layer_norm_backward,
            "quack": quack.with_float32_parameters(
                bind(quack.layer_norm_backward, "x", "weight", "dy", "rstd", "mean")
            ),
        },
    ),
    _case(
        "layer_norm", "add_layer_norm",
        lambda x, r, w, b, **on: F.add_layer_norm(x, r, x.shape[-1:], w, b, EPS, **on), _LAYER,
        backwards={"torch": _with_residual_gradient(_torch_layer_norm_backward)},
    ),
    _case(
        "rms_norm", "rms_norm",
        lambda x, w, **on: F.rms_norm(x, x.shape[-1:], w, EPS, **on), _RMS,
        rivals={"liger": liger.rms_norm, "quack": quack.rms_norm},
        backwards={
            "torch": _torch_rms_norm_backward,
            "liger": liger.rms_norm_backward,
            "quack": quack.rms_norm_backward,
        },
    ),
    _case(
        "rms_norm", "add_rms_norm",
        lambda x, r, w, **on: F.add_rms_norm(x, r, x.shape[-1:], w, EPS, **on), _RMS,
        rivals={"liger": liger.add_rms_norm, "quack": quack.add_rms_norm},
        backwards={
            "torch": _with_residual_gradient(_torch_rms_norm_backward),
            "liger": liger.add_rms_norm_backward,
            "quack": quack.rms_norm_backward,
        },
    ),
)  # fmt: skip
