# SPDX-License-Identifier: MIT
"""dropout, and bias_dropout_add with a bias.

Each provider draws its own elements. Ours are given a seed, as a model's training loop or a graph
that is replayed gives it: the cost of drawing one is the host's (`bench host`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Draw,
    Function,
    bind,
    differentiate,
)  # fmt: skip
from transformer_kernels.ops.pointwise.dropout import BIAS_DROPOUT_ADD, DROPOUT

_P = 0.125  # a multiple of 2^-16: all providers have the same scale
_SCALE = 1 / (1 - _P)


def _seed() -> Tensor:
    return torch.tensor([1, 2])


# ---- exactly ------------------------------------------------------------------------------------


def _exactly_dropped(x: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, x * _SCALE, 0.0)


def _exactly_added(x: Tensor, residual: Tensor, bias: Tensor, kept: Tensor) -> Tensor:
    return _exactly_dropped(x + bias, kept) + residual


def _is_there(_: str, __: Arguments, results: Sequence[Tensor]) -> Tensor:
    return results[0] != 0


def _is_added(pass_: str, arguments: Arguments, results: Sequence[Tensor]) -> Tensor:
    """Whether an element is nearer to what it is if kept than to the residual."""
    if pass_ != "forward":
        return results[0] != 0
    x, residual, bias = (arguments[name].float() for name in ("x", "residual", "bias"))
    change = results[0].float() - residual
    return (change - (x + bias) * _SCALE).abs() < change.abs()


# ---- providers ----------------------------------------------------------------------------------


def _torch_dropout(x: Tensor) -> Tensor:
    return F.dropout(x, _P)


def _torch_add(x: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    return residual + F.dropout(x + bias, _P)


def _torch_biased(x: Tensor, bias: Tensor) -> Tensor:
    """Has the gradients of _torch_add, but for the residual's, which is dy itself."""
    return F.dropout(x + bias, _P)


def _ours_dropout(backend: str) -> Function:
    seed = _seed()
    return lambda x: DROPOUT.call(x, seed, _P, backend)


def _ours_add(backend: str) -> Function:
    seed = _seed()
    return lambda x, residual, bias: BIAS_DROPOUT_ADD.call(x, bias, residual, seed, _P, backend)


def _backward(kernel: Function) -> Function:
    seed = _seed()
    return lambda dy: kernel(dy, seed, _P)


def _backward_of_add(kernel: Function) -> Function:
    seed = _seed()
    return lambda dy, bias: kernel(dy, bias, seed, _P, True)


def _triton(declared: Any) -> Function:
    return lambda *arguments: declared.triton().backward(*arguments)


def _compiled(function: Function, *names: str) -> Callable[[Compiler], Build]:
    return lambda compiled: differentiate(compiled(function), names, ("dy",))


def _nothing(_: Arguments) -> Arguments:
    return {}


OPS = (
    Case(
        name="dropout",
        key="pointwise/dropout",
        inputs=("x",),
        parameters=(),
        outputs=("y",),
        backward_reads=("dy",),
        reference=_exactly_dropped,
        save=_nothing,
        functions={
            "torch": _torch_dropout,
            "ours": _ours_dropout("auto"),
            "triton": _ours_dropout("triton"),
        },
        backward={
            "torch": differentiate(_torch_dropout, ("x",), ("dy",)),
            "ours": bind(_backward(DROPOUT.raw.backward), "dy"),
            "triton": bind(_backward(_triton(DROPOUT)), "dy"),
        },
        compiled_backward=_compiled(_torch_dropout, "x"),
        draw=Draw(_P, _is_there),
    ),
    Case(
        name="bias_dropout_add",
        key="pointwise/bias_dropout_add",
        inputs=("x", "residual"),
        parameters=("bias",),
        outputs=("y",),
        backward_reads=("dy",),
        reference=_exactly_added,
        save=_nothing,
        functions={
            "torch": _torch_add,
            "ours": _ours_add("auto"),
            "triton": _ours_add("triton"),
        },
        backward={
            "torch": differentiate(_torch_biased, ("x", "bias"), ("dy",)),
            "ours": bind(_backward_of_add(BIAS_DROPOUT_ADD.raw.backward), "dy", "bias"),
            "triton": bind(_backward_of_add(_triton(BIAS_DROPOUT_ADD)), "dy", "bias"),
        },
        compiled_backward=_compiled(_torch_biased, "x", "bias"),
        draw=Draw(_P, _is_added, in_sum=True),
    ),
)
