# SPDX-License-Identifier: MIT
"""bias_dropout_add_layer_norm, with all parameters, and bias_dropout_add_rms_norm, without a bias.

Each provider draws its own elements; ours are given a seed, as in pointwise_dropout.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels.bench.cases._norm import EPS
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Draw,
    Function,
    differentiate,
)
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops.norm.dropout_norm import DROPOUT_LAYER_NORM, DROPOUT_RMS_NORM
from transformer_kernels.testing import reference

_P = 0.125  # a multiple of 2^-16: all providers have the same scale
_SCALE = 1 / (1 - _P)

_INPUTS = ("x", "residual")


def _kept(pass_: str, arguments: Arguments, results: Sequence[Tensor]) -> Tensor:
    """In the sum, whether an element is nearer to what it is if kept than to the residual."""
    if pass_ != "forward":
        return results[0] != 0
    x, residual, x_bias = (arguments[name].float() for name in ("x", "residual", "x_bias"))
    change = results[1].float() - residual
    return (change - (x + x_bias) * _SCALE).abs() < change.abs()


def _reference(norm: Function) -> Function:
    def run(x: Tensor, residual: Tensor, x_bias: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        *parameters, kept = rest
        s = torch.where(kept, (x + x_bias) * _SCALE, 0.0) + residual
        return norm(s, *parameters, eps=EPS), s

    return run


def _torch(norm: Function) -> Function:
    def run(
        x: Tensor, residual: Tensor, x_bias: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        s = residual + F.dropout(x + x_bias, _P)
        return norm(s, *parameters), s

    return run


def _torch_layer_norm(s: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(s, s.shape[-1:], weight, bias, EPS)


def _torch_rms_norm(s: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(s, s.shape[-1:], weight, EPS)


def _seed() -> Tensor:
    return torch.tensor([1, 2])


def _ours(declared: Op, backend: str) -> Function:
    seed = _seed()
    return lambda x, residual, x_bias, weight, bias=None: declared.call(
        x, x_bias, residual, weight, bias, seed, _P, EPS, False, backend
    )


def _save(declared: Op) -> Callable[[Arguments], Arguments]:
    """What our forward pass saves."""

    def run(arguments: Arguments) -> Arguments:
        x, residual, x_bias, weight = (arguments[n] for n in (*_INPUTS, "x_bias", "weight"))
        bias = arguments.get("bias")
        results = declared.raw.forward(x, x_bias, residual, weight, bias, _seed(), _P, EPS, False)
        names = ("y", "sum", *declared.saved)
        return {n: v for n, v in zip(names, results, strict=True) if n != "y"}

    return run


def _backward(declared: Op, kernel: Function) -> Build:
    """Gives the gradients in the order of the inputs and the parameters."""
    seed = _seed()

    def build(arguments: Arguments) -> Call:
        read = [arguments[name] for name in ("dy", "dsum", "sum", *declared.saved)]
        parameters = [arguments["x_bias"], arguments["weight"], arguments.get("bias")]
        need_dbias = "bias" in arguments

        def call() -> tuple[Any, ...]:
            dx, dx_bias, dresidual, *of_norm = kernel(
                *read, *parameters, seed, _P, False, True, True, need_dbias
            )
            return dx, dresidual, dx_bias, *of_norm

        return call

    return build


def _triton(declared: Op) -> Function:
    def run(*arguments: Any) -> Any:
        assert declared.triton is not None
        return declared.triton().backward(*arguments)

    return run


def _op(declared: Op, torchs: Function, exact: Function, *parameters: str) -> Case:
    function, operands, gradients = _torch(torchs), (*_INPUTS, *parameters), ("dy", "dsum")

    def compiled_backward(compiled: Compiler) -> Build:
        return differentiate(compiled(function), operands, gradients)

    return Case(
        name=declared.name,
        key="norm/dropout_norm",
        inputs=_INPUTS,
        parameters=parameters,
        outputs=("y", "sum"),
        backward_reads=(*gradients, "sum", *declared.saved, "weight"),
        reference=_reference(exact),
        save=_save(declared),
        functions={
            "torch": function,
            "ours": _ours(declared, "auto"),
            "triton": _ours(declared, "triton"),
        },
        backward={
            "torch": differentiate(function, operands, gradients),
            "ours": _backward(declared, declared.raw.backward),
            "triton": _backward(declared, _triton(declared)),
        },
        compiled_backward=compiled_backward,
        gradients=2,
        draw=Draw(_P, _kept, in_sum=True),
    )


OPS = (
    _op(DROPOUT_LAYER_NORM, _torch_layer_norm, reference.layer_norm, "x_bias", "weight", "bias"),
    _op(DROPOUT_RMS_NORM, _torch_rms_norm, reference.rms_norm, "x_bias", "weight"),
)
