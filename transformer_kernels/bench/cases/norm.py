# SPDX-License-Identifier: MIT
"""layer_norm, with weight and bias, and rms_norm, with a weight: alone, of a sum, and of the sum
behind dropout, whose elements are each provider's own (see ``pointwise.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.cases._derive import derive
from transformer_kernels.bench.cases.pointwise import P, drawing, dropped, nearer_if_kept
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Draw,
    Function,
    bind,
    differentiate,
)
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing import reference

_EPS = 1e-5
_aten = torch.ops.aten
_LIGER_OFFSET, _LIGER_CASTING = 0.0, "llama"
_LAYER, _RMS = ("weight", "bias"), ("weight",)


def _of_sum(norm: Function) -> Function:
    def run(x: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        return norm(x + residual, *parameters), x + residual

    return run


def _with_residual_gradient(build: Build) -> Build:
    """The backward pass of the norm of the sum, then the gradient that goes past the norm."""

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
    _, mean, rstd = _aten.native_layer_norm(saved, size, weight, bias, _EPS)

    def call() -> Any:
        dx, dweight, dbias = _aten.native_layer_norm_backward(
            dy.to(weight.dtype), saved, size, mean, rstd, weight, bias, [True, True, True]
        )
        return dx.to(x.dtype), dweight, dbias

    return call


def _stock_rms_norm(x: Tensor, weight: Tensor) -> Any:
    return DECLARED["rms_norm"].stock(x, weight, None, _EPS, False)


def _torch_rms_norm_backward(arguments: Arguments) -> Call:
    """Autograd through the formula where the device has no raw op."""
    dy, x, weight = (arguments[name] for name in ("dy", "x", "weight"))
    if not (x.is_cuda and hasattr(_aten, "_fused_rms_norm_backward")):
        return differentiate(_stock_rms_norm, ("x", "weight"), ("dy",))(arguments)
    size, saved = x.shape[-1:], x.to(weight.dtype)
    _, rstd = _aten._fused_rms_norm(saved, size, weight, _EPS)

    def call() -> Any:
        dx, dweight = _aten._fused_rms_norm_backward(
            dy.to(weight.dtype), saved, size, rstd, weight, [True, True]
        )
        return dx.to(x.dtype), dweight

    return call


# ---- Liger --------------------------------------------------------------------------------------


def _liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, _EPS)


def _liger_layer_norm_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward

    dy, x, weight, bias = (arguments[name] for name in ("dy", "x", "weight", "bias"))
    _, saved, mean, rstd, *_ = layer_norm_forward(x, weight, bias, _EPS)
    return lambda: layer_norm_backward(dy, saved, weight, bias, mean, rstd)


def _liger_rms_norm(x: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    in_place = False
    return LigerRMSNormFunction.apply(x, weight, _EPS, _LIGER_OFFSET, _LIGER_CASTING, in_place)


def _liger_rms_norm_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward

    dy, x, weight = (arguments[name] for name in ("dy", "x", "weight"))
    _, saved, rstd, block, warps, casting = rms_norm_forward(
        x, weight, _EPS, _LIGER_OFFSET, _LIGER_CASTING, row_mode=None
    )
    return lambda: rms_norm_backward(
        dy, saved, weight, rstd, _LIGER_OFFSET, casting, block, warps, in_place=False,
        row_mode=None,
    )  # fmt: skip


def _liger_add(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Function

    return Function.apply(x, residual, weight, _EPS, _LIGER_OFFSET, _LIGER_CASTING, False)


def _liger_add_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.fused_add_rms_norm import (
        fused_add_rms_norm_backward,
        fused_add_rms_norm_forward,
    )

    names = ("dy", "dsum", "x", "residual", "weight")
    dy, dsum, x, residual, weight = (arguments[name] for name in names)
    _, total, rstd, block, warps, stages, casting = fused_add_rms_norm_forward(
        x, residual, weight, _EPS, _LIGER_OFFSET, _LIGER_CASTING
    )

    def call() -> Any:
        dx, _, dweight = fused_add_rms_norm_backward(
            dy, dsum, total, weight, rstd, _LIGER_OFFSET, casting, block, warps, stages,
            in_place=False,
        )  # fmt: skip
        return dx, dweight

    return call


# ---- QuACK --------------------------------------------------------------------------------------


def _quack_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from quack.rmsnorm import layernorm_fwd

    return layernorm_fwd(x, weight, bias, eps=_EPS)


def _quack_layer_norm_backward(
    x: Tensor, weight: Tensor, dy: Tensor, rstd: Tensor, mean: Tensor
) -> Any:
    from quack.rmsnorm import layernorm_bwd

    return layernorm_bwd(x, weight, dy, rstd, mean)


def _with_float32_parameters(build: Build) -> Build:
    """QuACK's layer norm takes no other parameters, whatever the dtype of x."""

    def run(arguments: Arguments) -> Call:
        parameters = {name: arguments[name].float() for name in ("weight", "bias")}
        return build({**arguments, **parameters})

    return run


def _quack_rms_norm(x: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, eps=_EPS)


def _quack_add(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, residual=residual, eps=_EPS, prenorm=True)


def _quack_rms_norm_backward(arguments: Arguments) -> Call:
    from quack.rmsnorm import rmsnorm_bwd

    dy, weight, rstd = (arguments[name] for name in ("dy", "weight", "rstd"))
    saved, dsum = arguments.get("sum", arguments["x"]), arguments.get("dsum")
    return lambda: rmsnorm_bwd(saved, weight, dy, rstd, dresidual_out=dsum)[:2]


# ---- the cases ----------------------------------------------------------------------------------


def _kept(pass_: str, arguments: Arguments, results: Sequence[Tensor]) -> Tensor:
    if pass_ != "forward":
        return results[0] != 0
    return nearer_if_kept(results[1], *(arguments[name] for name in ("x", "residual", "x_bias")))


def _behind_dropout(member: str, parameters: tuple[str, ...]) -> Case:
    norm = partial(getattr(reference, member), eps=_EPS)

    def exact(x: Tensor, residual: Tensor, x_bias: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        *given, kept = rest
        s = dropped(x + x_bias, kept) + residual
        return norm(s, *given), s

    return derive(
        DECLARED[f"bias_dropout_add_{member}"], "norm/dropout_norm", ("x", "residual"),
        ("x_bias", *parameters), fixed={"eps": _EPS, **drawing()}, reference=exact,
        draw=Draw(P, _kept, in_sum=True),
    )  # fmt: skip


def _case(member: str, name: str, ours: Function, parameters: tuple[str, ...], **of: Any) -> Case:
    exact = partial(getattr(reference, member), eps=_EPS)
    of_sum = name != member
    return derive(
        DECLARED[name], f"norm/{member}", ("x", "residual") if of_sum else ("x",), parameters,
        fixed={"eps": _EPS}, reference=_of_sum(exact) if of_sum else exact, ours=ours,
        compiled="gradient", **of,
    )  # fmt: skip


OPS = (
    _behind_dropout("layer_norm", _LAYER),
    _behind_dropout("rms_norm", _RMS),
    _case(
        "layer_norm", "layer_norm",
        lambda x, w, b, **on: F.layer_norm(x, x.shape[-1:], w, b, _EPS, **on), _LAYER,
        rivals={"liger": _liger_layer_norm},
        forward={"quack": _with_float32_parameters(bind(_quack_layer_norm, "x", *_LAYER))},
        backwards={
            "torch": _torch_layer_norm_backward,
            "liger": _liger_layer_norm_backward,
            "quack": _with_float32_parameters(
                bind(_quack_layer_norm_backward, "x", "weight", "dy", "rstd", "mean")
            ),
        },
    ),
    _case(
        "layer_norm", "add_layer_norm",
        lambda x, r, w, b, **on: F.add_layer_norm(x, r, x.shape[-1:], w, b, _EPS, **on), _LAYER,
        backwards={"torch": _with_residual_gradient(_torch_layer_norm_backward)},
    ),
    _case(
        "rms_norm", "rms_norm",
        lambda x, w, **on: F.rms_norm(x, x.shape[-1:], w, _EPS, **on), _RMS,
        rivals={"liger": _liger_rms_norm, "quack": _quack_rms_norm},
        backwards={
            "torch": _torch_rms_norm_backward,
            "liger": _liger_rms_norm_backward,
            "quack": _quack_rms_norm_backward,
        },
    ),
    _case(
        "rms_norm", "add_rms_norm",
        lambda x, r, w, **on: F.add_rms_norm(x, r, x.shape[-1:], w, _EPS, **on), _RMS,
        rivals={"liger": _liger_add, "quack": _quack_add},
        backwards={
            "torch": _with_residual_gradient(_torch_rms_norm_backward),
            "liger": _liger_add_backward,
            "quack": _quack_rms_norm_backward,
        },
    ),
)  # fmt: skip
