# SPDX-License-Identifier: MIT
"""layer_norm and add_layer_norm, with weight and bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.cases import _norm
from transformer_kernels.bench.cases._norm import EPS
from transformer_kernels.measure.case import Arguments, Build, Case, Function, bind
from transformer_kernels.measure.timing import Call
from transformer_kernels.testing import reference

_aten = torch.ops.aten
_STATISTICS = ("mean", "rstd")


def _reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return reference.layer_norm(x, weight, bias, eps=EPS)


@_norm.through_parameters_dtype
def _torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def _ours(backend: str) -> Function:
    return lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, EPS, backend=backend)


def _ours_add(backend: str) -> Function:
    return lambda x, residual, weight, bias: F.add_layer_norm(
        x, residual, x.shape[-1:], weight, bias, EPS, backend=backend
    )


def _save(arguments: Arguments) -> Arguments:
    variance, mean = torch.var_mean(_norm.widen(arguments["x"]), -1, correction=0)
    return {"mean": mean, "rstd": _norm.rstd_of(variance)}


def _torch_backward(arguments: Arguments) -> Call:
    """torch's raw op on what its own forward pass saves."""
    dy, x, weight, bias = (arguments[name] for name in ("dy", "x", "weight", "bias"))
    size, mask = x.shape[-1:], [True, True, True]
    saved = x.to(weight.dtype)
    _, mean, rstd = _aten.native_layer_norm(saved, size, weight, bias, EPS)

    def call() -> Any:
        dx, dweight, dbias = _aten.native_layer_norm_backward(
            dy.to(weight.dtype), saved, size, mean, rstd, weight, bias, mask
        )
        return dx.to(x.dtype), dweight, dbias

    return call


def _triton_backward(*arguments: Any) -> Any:
    from transformer_kernels.ops.norm.norm_triton import norm_kernels

    alone, _ = norm_kernels("layer_norm", True)
    return alone.backward(*arguments)


def _formula(
    dy: Tensor, dsum: Any, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, *_: Any
) -> Any:
    return _norm.formula_backward(dy, dsum, x, mean, rstd, weight, need_dbias=True)


def _bind_backward(backward: Function) -> Build:
    return _norm.bind_backward(backward, _STATISTICS, need_dbias=True)


def _liger(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, EPS)


def _liger_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward

    dy, x, weight, bias = (arguments[name] for name in ("dy", "x", "weight", "bias"))
    _, saved, mean, rstd, *_ = layer_norm_forward(x, weight, bias, EPS)
    return lambda: layer_norm_backward(dy, saved, weight, bias, mean, rstd)


def _quack(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from quack.rmsnorm import layernorm_fwd

    return layernorm_fwd(x, weight, bias, eps=EPS)


def _quack_backward(x: Tensor, weight: Tensor, dy: Tensor, rstd: Tensor, mean: Tensor) -> Any:
    from quack.rmsnorm import layernorm_bwd

    return layernorm_bwd(x, weight, dy, rstd, mean)


def _with_float32_parameters(build: Build) -> Build:
    """QuACK's layer norm takes no other parameters, whatever the dtype of x."""

    def run(arguments: Arguments) -> Call:
        parameters = {name: arguments[name].float() for name in ("weight", "bias")}
        return build({**arguments, **parameters})

    return run


_raw_backward = torch.ops.transformer_kernels.layer_norm_backward.default

LAYER_NORM = Case(
    name="layer_norm",
    key="norm/layer_norm",
    inputs=("x",),
    parameters=("weight", "bias"),
    outputs=("y",),
    backward_reads=("dy", "x", "mean", "rstd", "weight"),
    reference=_reference,
    save=_save,
    functions={
        "torch": _torch,
        "ours": _ours("auto"),
        "triton": _ours("triton"),
        "liger": _liger,
    },
    forward={"quack": _with_float32_parameters(bind(_quack, "x", "weight", "bias"))},
    backward={
        "torch": _torch_backward,
        "ours": _bind_backward(_raw_backward),
        "triton": _bind_backward(_triton_backward),
        "liger": _liger_backward,
        "quack": _with_float32_parameters(
            bind(_quack_backward, "x", "weight", "dy", "rstd", "mean")
        ),
    },
    compiled_backward=lambda compiled: _bind_backward(compiled(_formula)),
)

ADD_LAYER_NORM = Case(
    name="add_layer_norm",
    key="norm/layer_norm",
    inputs=("x", "residual"),
    parameters=("weight", "bias"),
    outputs=("y", "sum"),
    backward_reads=("dy", "dsum", "sum", "mean", "rstd", "weight"),
    reference=_norm.with_residual(_reference),
    save=_norm.save_sum(_save),
    functions={
        "torch": _norm.with_residual(_torch),
        "ours": _ours_add("auto"),
        "triton": _ours_add("triton"),
    },
    backward={
        "torch": _norm.with_residual_gradient(_torch_backward),
        "ours": _bind_backward(_raw_backward),
        "triton": _bind_backward(_triton_backward),
    },
    compiled_backward=lambda compiled: _bind_backward(compiled(_formula)),
)

OPS = (LAYER_NORM, ADD_LAYER_NORM)
