# SPDX-License-Identifier: MIT
"""cross_entropy of labels: alone, and with its gradient from the same pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals import quack
from transformer_kernels.measure.case import Case, Function, bind, differentiate
from transformer_kernels.measure.derive import derive, no_compiled_backward, whole
from transformer_kernels.measure.sweeps import Grid, Shape, of_rows
from transformer_kernels.ops.loss._formula import MEAN, SUM
from transformer_kernels.ops.loss._ops import CROSS_ENTROPY

_KEY, _OPERANDS = "loss/cross_entropy", ("x", "target")
_OPTIONS = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "softcap": 0.0}

# GPT-2's vocabulary, unpadded and padded, and Llama 3's.
_VOCABULARIES = (50257, 50304, 128256)


def _shapes(rows_on_gpu: int, rows_on_cpu: int, *vocabularies: int) -> Any:
    def shapes(device: torch.device, dtype: torch.dtype) -> list[Shape]:
        """On a GPU, every dtype has as many bytes."""
        rows = rows_on_cpu if device.type == "cpu" else rows_on_gpu * 2 // dtype.itemsize
        return [(max(rows, 1), vocabulary) for vocabulary in vocabularies]

    return shapes


_GRID = Grid(
    forms="8192x50257",
    fold=lambda sizes: (torch.Size(sizes[:-1]).numel(), sizes[-1]),
    of_model=of_rows(lambda _: (_VOCABULARIES[0],)),
    sweeps={
        "quick": _shapes(8192, 256, 50257),
        "headline": _shapes(8192, 1024, *_VOCABULARIES),
        "small": _shapes(64, 16, 1000, *_VOCABULARIES),
        "full": _shapes(8192, 1024, 1000, 8192, 32000, *_VOCABULARIES, 262144),
    },
)


def _sizes(name: str, shape: Shape) -> Shape:
    return {"x": shape, "dx": shape, "target": shape[:-1]}.get(name, ())


def _reference(x: Tensor, target: Tensor) -> Tensor:
    return (torch.logsumexp(x, -1) - x.gather(-1, target.unsqueeze(-1)).squeeze(-1)).mean()


# ---- with the gradient in the forward pass ------------------------------------------------------


def _reference_and_gradient(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    ones = torch.ones_like(target, dtype=x.dtype).unsqueeze(-1)
    dx = torch.softmax(x, -1).scatter_add(-1, target.unsqueeze(-1), -ones)
    return _reference(x, target) * len(target), dx


def _loss_and_gradient(loss: Function) -> Function:
    def run(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            value = loss(leaf, target, reduction="sum")
            (dx,) = torch.autograd.grad(value, leaf)
        return value.detach(), dx

    return run


def _ours_with_gradient(x: Tensor, target: Tensor) -> Any:
    run = torch.ops.transformer_kernels.cross_entropy_gradient
    return run(x, target, None, None, *_OPTIONS.values(), SUM, False)


def _vjp(x: Tensor, target: Tensor) -> Any:
    made: Any = torch.func.vjp(lambda x: functional.cross_entropy(x, target, reduction="sum"), x)
    loss, back = made
    return loss, *back(torch.ones_like(loss))


OPS = (
    derive(
        CROSS_ENTROPY, _KEY, _OPERANDS, integers=("target",), fixed={**_OPTIONS, "reduction": MEAN},
        reference=_reference, ours=F.cross_entropy, rivals={"quack": quack.cross_entropy},
        backwards={"quack": differentiate(quack.cross_entropy, _OPERANDS, ("dloss",))},
        compiled="vjp", grid=_GRID, sizes=_sizes, verified=whole,
    ),
    Case(
        name="cross_entropy_and_gradient", key=_KEY, inputs=_OPERANDS, integers=("target",),
        parameters=(), outputs=("loss", "dx"), reference=_reference_and_gradient,
        functions={"torch": _vjp},
        forward={
            "torch": bind(_loss_and_gradient(functional.cross_entropy), *_OPERANDS),
            "ours": bind(_ours_with_gradient, *_OPERANDS),
            "quack": bind(quack.cross_entropy_with_gradient, *_OPERANDS),
        },
        backward={},
        compiled_backward=no_compiled_backward("cross_entropy_and_gradient"),
        grid=_GRID, sizes=_sizes, verified=whole, feature=True,
    ),
)  # fmt: skip
