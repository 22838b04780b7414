# SPDX-License-Identifier: MIT
"""rms_norm and add_rms_norm, with a weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.cases import _norm
from transformer_kernels.bench.cases._norm import EPS
from transformer_kernels.measure.case import Arguments, Build, Case, Function, differentiate
from transformer_kernels.measure.timing import Call
from transformer_kernels.testing import reference

_aten = torch.ops.aten
_LIGER_OFFSET, _LIGER_CASTING = 0.0, "llama"


def _reference(x: Tensor, weight: Tensor) -> Tensor:
    return reference.rms_norm(x, weight, eps=EPS)


@_norm.through_parameters_dtype
def _torch(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


def _ours(backend: str) -> Function:
    return lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, EPS, backend=backend)


def _ours_add(backend: str) -> Function:
    return lambda x, residual, weight: F.add_rms_norm(
        x, residual, x.shape[-1:], weight, EPS, backend=backend
    )


def _save(arguments: Arguments) -> Arguments:
    return {"rstd": _norm.rstd_of(_norm.widen(arguments["x"]).square().mean(-1))}


def _torch_backward(arguments: Arguments) -> Call:
    """torch's raw op where the device has one, else autograd through its formula."""
    dy, x, weight = (arguments[name] for name in ("dy", "x", "weight"))
    has_raw = x.is_cuda and hasattr(_aten, "_fused_rms_norm_backward")
    if not has_raw:
        return differentiate(_torch, ("x", "weight"), ("dy",))(arguments)
    size, saved = x.shape[-1:], x.to(weight.dtype)
    _, rstd = _aten._fused_rms_norm(saved, size, weight, EPS)

    def call() -> Any:
        dx, dweight = _aten._fused_rms_norm_backward(
            dy.to(weight.dtype), saved, size, rstd, weight, [True, True]
        )
        return dx.to(x.dtype), dweight

    return call


def _triton_backward(*arguments: Any) -> Any:
    from transformer_kernels.ops.norm.norm_triton import norm_kernels

    alone, _ = norm_kernels("rms_norm", False)
    return alone.backward(*arguments)


def _formula(dy: Tensor, dsum: Any, x: Tensor, rstd: Tensor, weight: Tensor, *_: Any) -> Any:
    return _norm.formula_backward(dy, dsum, x, None, rstd, weight, need_dbias=False)


def _bind_backward(backward: Function) -> Build:
    return _norm.bind_backward(backward, ("rstd",), need_dbias=False)


def _liger(x: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    in_place = False
    return LigerRMSNormFunction.apply(x, weight, EPS, _LIGER_OFFSET, _LIGER_CASTING, in_place)


def _liger_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward

    dy, x, weight = (arguments[name] for name in ("dy", "x", "weight"))
    _, saved, rstd, block, warps, casting = rms_norm_forward(
        x, weight, EPS, _LIGER_OFFSET, _LIGER_CASTING, row_mode=None
    )
    return lambda: rms_norm_backward(
        dy, saved, weight, rstd, _LIGER_OFFSET, casting, block, warps, in_place=False,
        row_mode=None,
    )  # fmt: skip


def _liger_add(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Function

    return Function.apply(x, residual, weight, EPS, _LIGER_OFFSET, _LIGER_CASTING, False)


def _liger_add_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.fused_add_rms_norm import (
        fused_add_rms_norm_backward,
        fused_add_rms_norm_forward,
    )

    names = ("dy", "dsum", "x", "residual", "weight")
    dy, dsum, x, residual, weight = (arguments[name] for name in names)
    _, total, rstd, block, warps, stages, casting = fused_add_rms_norm_forward(
        x, residual, weight, EPS, _LIGER_OFFSET, _LIGER_CASTING
    )

    def call() -> Any:
        dx, _, dweight = fused_add_rms_norm_backward(
            dy, dsum, total, weight, rstd, _LIGER_OFFSET, casting, block, warps, stages,
            in_place=False,
        )  # fmt: skip
        return dx, dweight

    return call


def _quack(x: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, eps=EPS)


def _quack_add(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)


def _quack_backward(arguments: Arguments) -> Call:
    from quack.rmsnorm import rmsnorm_bwd

    dy, weight, rstd = (arguments[name] for name in ("dy", "weight", "rstd"))
    saved, dsum = arguments.get("sum", arguments["x"]), arguments.get("dsum")
    return lambda: rmsnorm_bwd(saved, weight, dy, rstd, dresidual_out=dsum)[:2]


_raw_backward = torch.ops.transformer_kernels.rms_norm_backward.default

RMS_NORM = Case(
    name="rms_norm",
    key="norm/rms_norm",
    inputs=("x",),
    parameters=("weight",),
    outputs=("y",),
    backward_reads=("dy", "x", "rstd", "weight"),
    reference=_reference,
    save=_save,
    functions={
        "torch": _torch,
        "ours": _ours("auto"),
        "triton": _ours("triton"),
        "liger": _liger,
        "quack": _quack,
    },
    backward={
        "torch": _torch_backward,
        "ours": _bind_backward(_raw_backward),
        "triton": _bind_backward(_triton_backward),
        "liger": _liger_backward,
        "quack": _quack_backward,
    },
    compiled_backward=lambda compiled: _bind_backward(compiled(_formula)),
)

ADD_RMS_NORM = Case(
    name="add_rms_norm",
    key="norm/rms_norm",
    inputs=("x", "residual"),
    parameters=("weight",),
    outputs=("y", "sum"),
    backward_reads=("dy", "dsum", "sum", "rstd", "weight"),
    reference=_norm.with_residual(_reference),
    save=_norm.save_sum(_save),
    functions={
        "torch": _norm.with_residual(_torch),
        "ours": _ours_add("auto"),
        "triton": _ours_add("triton"),
        "liger": _liger_add,
        "quack": _quack_add,
    },
    backward={
        "torch": _norm.with_residual_gradient(_torch_backward),
        "ours": _bind_backward(_raw_backward),
        "triton": _bind_backward(_triton_backward),
        "liger": _liger_add_backward,
        "quack": _quack_backward,
    },
    compiled_backward=lambda compiled: _bind_backward(compiled(_formula)),
)

OPS = (RMS_NORM, ADD_RMS_NORM)
