# SPDX-License-Identifier: MIT
"""cross_entropy of labels: alone, and with its gradient from the same pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Function,
    Part,
    UnsupportedError,
    bind,
    differentiate,
)
from transformer_kernels.measure.sweeps import Grid, Shape
from transformer_kernels.ops.loss._formula import MEAN, SUM

_ops = torch.ops.transformer_kernels
_NO_OPTIONS = (None, None, -100, 0.0, 0.0, 0.0)  # probabilities, weight, ...

# GPT-2's vocabulary as it is and padded, that of Llama 3.
_VOCABULARIES = (50257, 50304, 128256)


def _shapes(rows_on_gpu: int, rows_on_cpu: int, *vocabularies: int) -> Any:
    def shapes(device: torch.device, dtype: torch.dtype) -> list[Shape]:
        """On a GPU, as many bytes in every dtype."""
        rows = rows_on_cpu if device.type == "cpu" else rows_on_gpu * 2 // dtype.itemsize
        return [(max(rows, 1), vocabulary) for vocabulary in vocabularies]

    return shapes


_GRID = Grid(
    forms="8192x50257",
    fold=lambda sizes: (torch.Size(sizes[:-1]).numel(), sizes[-1]),
    sweeps={
        "quick": _shapes(8192, 256, 50257),
        "headline": _shapes(8192, 1024, *_VOCABULARIES),
        "small": _shapes(64, 16, 1000, *_VOCABULARIES),
        "full": _shapes(8192, 1024, 1000, 8192, 32000, *_VOCABULARIES, 262144),
    },
)


def _sizes(name: str, shape: Shape) -> Shape:
    return {"x": shape, "dx": shape, "target": shape[:-1]}.get(name, ())


def _whole(_: Arguments) -> Part:
    """A mean is one of all rows."""
    return lambda _, tensor: tensor


def _reference(x: Tensor, target: Tensor) -> Tensor:
    return (torch.logsumexp(x, -1) - x.gather(-1, target.unsqueeze(-1)).squeeze(-1)).mean()


def _reference_and_gradient(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    ones = torch.ones_like(target, dtype=x.dtype).unsqueeze(-1)
    dx = torch.softmax(x, -1).scatter_add(-1, target.unsqueeze(-1), -ones)
    return _reference(x, target) * len(target), dx


def _saved(arguments: Arguments) -> Arguments:
    x, target = arguments["x"], arguments["target"]
    _, *saved = _ops.cross_entropy_forward(x, target, *_NO_OPTIONS, MEAN, False)
    return dict(zip(("top", "spread", "share", "total"), saved, strict=True))


_READS = ("dloss", "x", "target", "top", "spread", "share", "total")


def _backward(kernel: Callable[..., Any]) -> Function:
    def run(dloss: Tensor, x: Tensor, target: Tensor, *saved: Tensor) -> Any:
        return kernel(dloss, x, target, None, None, *saved, *_NO_OPTIONS[2:], MEAN)

    return run


def _triton_backward(*arguments: Tensor) -> Any:
    from transformer_kernels.ops.loss.cross_entropy_triton import cross_entropy_backward

    return _backward(cross_entropy_backward)(*arguments)


def _compiled_backward(compiled: Compiler) -> Build:
    def backward(dloss: Tensor, x: Tensor, target: Tensor) -> Any:
        return torch.func.vjp(lambda x: functional.cross_entropy(x, target), x)[1](dloss)

    return bind(compiled(backward), "dloss", "x", "target")


def _quack(x: Tensor, target: Tensor) -> Any:
    from quack.cross_entropy import cross_entropy

    return cross_entropy(x, target)


CROSS_ENTROPY = Case(
    name="cross_entropy",
    key="loss/cross_entropy",
    inputs=("x", "target"),
    integers=("target",),
    parameters=(),
    outputs=("loss",),
    backward_reads=_READS,
    reference=_reference,
    save=_saved,
    functions={
        "torch": functional.cross_entropy,
        "ours": F.cross_entropy,
        "triton": lambda x, target: F.cross_entropy(x, target, backend="triton"),
        "quack": _quack,
    },
    backward={
        "torch": differentiate(functional.cross_entropy, ("x", "target"), ("dloss",)),
        "ours": bind(_backward(_ops.cross_entropy_backward.default), *_READS),
        "triton": bind(_triton_backward, *_READS),
        "quack": differentiate(_quack, ("x", "target"), ("dloss",)),
    },
    compiled_backward=_compiled_backward,
    grid=_GRID,
    sizes=_sizes,
    verified=_whole,
)


# ---- with the gradient in the forward pass ------------------------------------------------------


def _loss_and_gradient(loss: Function) -> Function:
    def run(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            value = loss(leaf, target, reduction="sum")
            (dx,) = torch.autograd.grad(value, leaf)
        return value.detach(), dx

    return run


def _ours_with_gradient(x: Tensor, target: Tensor) -> Any:
    return _ops.cross_entropy_gradient(x, target, *_NO_OPTIONS, SUM, False)


def _quack_with_gradient(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    from quack.cross_entropy import cross_entropy_fwd

    losses, dx = cross_entropy_fwd(x, target, return_dx=True)
    return losses.sum(), dx


def _vjp(x: Tensor, target: Tensor) -> Any:
    made: Any = torch.func.vjp(lambda x: functional.cross_entropy(x, target, reduction="sum"), x)
    loss, back = made
    return loss, *back(torch.ones_like(loss))


def _no_backward(_: Compiler) -> Build:
    raise UnsupportedError("cross_entropy_and_gradient has no backward pass")


CROSS_ENTROPY_AND_GRADIENT = Case(
    name="cross_entropy_and_gradient",
    key="loss/cross_entropy",
    inputs=("x", "target"),
    integers=("target",),
    parameters=(),
    outputs=("loss", "dx"),
    backward_reads=(),
    reference=_reference_and_gradient,
    save=lambda _: {},
    functions={"torch": _vjp},
    forward={
        "torch": bind(_loss_and_gradient(functional.cross_entropy), "x", "target"),
        "ours": bind(_ours_with_gradient, "x", "target"),
        "quack": bind(_quack_with_gradient, "x", "target"),
    },
    backward={},
    compiled_backward=_no_backward,
    grid=_GRID,
    sizes=_sizes,
    verified=_whole,
    feature=True,
)

OPS = (CROSS_ENTROPY, CROSS_ENTROPY_AND_GRADIENT)
