# SPDX-License-Identifier: MIT
"""Norms and softmax by Liger."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transformer_kernels.bench.rivals import EPS
from transformer_kernels.measure.case import Arguments
from transformer_kernels.measure.timing import Call

_OFFSET, _CASTING = 0.0, "llama"


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, EPS)


def layer_norm_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward

    dy, x, weight, bias = (arguments[name] for name in ("dy", "x", "weight", "bias"))
    _, saved, mean, rstd, *_ = layer_norm_forward(x, weight, bias, EPS)
    return lambda: layer_norm_backward(dy, saved, weight, bias, mean, rstd)


def rms_norm(x: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    in_place = False
    return LigerRMSNormFunction.apply(x, weight, EPS, _OFFSET, _CASTING, in_place)


def rms_norm_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward

    dy, x, weight = (arguments[name] for name in ("dy", "x", "weight"))
    _, saved, rstd, block, warps, casting = rms_norm_forward(
        x, weight, EPS, _OFFSET, _CASTING, row_mode=None
    )
    return lambda: rms_norm_backward(
        dy, saved, weight, rstd, _OFFSET, casting, block, warps, in_place=False,
        row_mode=None,
    )  # fmt: skip


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Function

    return Function.apply(x, residual, weight, EPS, _OFFSET, _CASTING, False)


def add_rms_norm_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.fused_add_rms_norm import (
        fused_add_rms_norm_backward,
        fused_add_rms_norm_forward,
    )

    names = ("dy", "dsum", "x", "residual", "weight")
    dy, dsum, x, residual, weight = (arguments[name] for name in names)
    _, total, rstd, block, warps, stages, casting = fused_add_rms_norm_forward(
        x, residual, weight, EPS, _OFFSET, _CASTING
    )

    def call() -> Any:
        dx, _, dweight = fused_add_rms_norm_backward(
            dy, dsum, total, weight, rstd, _OFFSET, casting, block, warps, stages,
            in_place=False,
        )  # fmt: skip
        return dx, dweight

    return call


def softmax(x: Tensor) -> Any:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


def softmax_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.softmax import _softmax_backward, _softmax_forward

    dy, y = arguments["dy"], arguments["y"]
    _, *launch = _softmax_forward(arguments["x"])
    return lambda: _softmax_backward(dy, y, *launch)
