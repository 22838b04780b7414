# SPDX-License-Identifier: MIT
"""softmax and log_softmax over the last dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Case, Function, bind
from transformer_kernels.measure.timing import Call
from transformer_kernels.testing import reference

_aten = torch.ops.aten


def _torch_backward(dy: Tensor, y: Tensor) -> Any:
    return _aten._softmax_backward_data(dy, y, -1, y.dtype)


def _torch_log_backward(dy: Tensor, y: Tensor) -> Any:
    return _aten._log_softmax_backward_data(dy, y, -1, y.dtype)


def _ours_backward(log: bool) -> Function:
    raw = torch.ops.transformer_kernels.softmax_backward.default
    return lambda dy, y: raw(dy, y, 1.0, False, log)


def _triton_backward(log: bool) -> Function:
    def run(dy: Tensor, y: Tensor) -> Tensor:
        from transformer_kernels.ops.softmax.softmax_triton import softmax_backward

        return softmax_backward(dy, y, 1.0, False, log)

    return run


def _formula_backward(dy: Tensor, y: Tensor) -> Tensor:
    wide = torch.promote_types(y.dtype, torch.float32)
    product = dy.to(wide) * y.to(wide)
    return (product - y.to(wide) * product.sum(-1, keepdim=True)).to(y.dtype)


def _formula_log_backward(dy: Tensor, y: Tensor) -> Tensor:
    wide = torch.promote_types(y.dtype, torch.float32)
    return (dy.to(wide) - y.to(wide).exp() * dy.to(wide).sum(-1, keepdim=True)).to(y.dtype)


def _liger(x: Tensor) -> Any:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


def _liger_backward(arguments: Arguments) -> Call:
    from liger_kernel.ops.softmax import _softmax_backward, _softmax_forward

    dy, y = arguments["dy"], arguments["y"]
    _, *launch = _softmax_forward(arguments["x"])
    return lambda: _softmax_backward(dy, y, *launch)


def _quack(x: Tensor) -> Any:
    from quack.softmax import softmax

    return softmax(x)


def _quack_backward(dy: Tensor, y: Tensor) -> Any:
    from quack.softmax import softmax_bwd

    return softmax_bwd(dy, y)


SOFTMAX = Case(
    name="softmax",
    key="softmax/softmax",
    inputs=("x",),
    parameters=(),
    outputs=("y",),
    backward_reads=("dy", "y"),
    reference=reference.softmax,
    save=lambda arguments: {"y": torch.softmax(arguments["x"], -1)},
    functions={
        "torch": lambda x: torch.softmax(x, -1),
        "ours": lambda x: F.softmax(x, -1),
        "triton": lambda x: F.softmax(x, -1, backend="triton"),
        "liger": _liger,
        "quack": _quack,
    },
    backward={
        "torch": bind(_torch_backward, "dy", "y"),
        "ours": bind(_ours_backward(log=False), "dy", "y"),
        "triton": bind(_triton_backward(log=False), "dy", "y"),
        "liger": _liger_backward,
        "quack": bind(_quack_backward, "dy", "y"),
    },
    compiled_backward=lambda compiled: bind(compiled(_formula_backward), "dy", "y"),
)

LOG_SOFTMAX = Case(
    name="log_softmax",
    key="softmax/softmax",
    inputs=("x",),
    parameters=(),
    outputs=("y",),
    backward_reads=("dy", "y"),
    reference=partial(reference.softmax, log=True),
    save=lambda arguments: {"y": torch.log_softmax(arguments["x"], -1)},
    functions={
        "torch": lambda x: torch.log_softmax(x, -1),
        "ours": lambda x: F.log_softmax(x, -1),
        "triton": lambda x: F.log_softmax(x, -1, backend="triton"),
    },
    backward={
        "torch": bind(_torch_log_backward, "dy", "y"),
        "ours": bind(_ours_backward(log=True), "dy", "y"),
        "triton": bind(_triton_backward(log=True), "dy", "y"),
    },
    compiled_backward=lambda compiled: bind(compiled(_formula_log_backward), "dy", "y"),
)

OPS = (SOFTMAX, LOG_SOFTMAX)
