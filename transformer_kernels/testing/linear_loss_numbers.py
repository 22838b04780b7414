# SPDX-License-Identifier: MIT
"""Operands of the loss of a linear layer, and the check of its results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transformer_kernels import _torch
from transformer_kernels import functional as F
from transformer_kernels.ops.loss import _formula
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

ROWS, TERMS, CLASSES = 13, 24, 131


def operands(
    dtype: torch.dtype, device: str = "cpu", rows: int = ROWS, classes: int = CLASSES
) -> tuple[list[Tensor], Tensor]:
    """x, weight and bias; and labels, of which some are ignored."""
    weight = randn((classes, TERMS), torch.float64, device) * TERMS**-0.5
    leaves = [
        randn((rows, TERMS), dtype, device),
        weight.to(dtype),
        randn((classes,), dtype, device),
    ]
    target = torch.randint(0, classes, (rows,), device=device)
    target[1::5] = -100
    return [leaf.requires_grad_() for leaf in leaves], target


def ours(leaves: list[Tensor], target: Tensor, **options: Any) -> Tensor:
    x, weight, *bias = leaves
    return F.linear_cross_entropy(
        x, weight, target, linear_bias=bias[0] if bias else None, **options
    )


def rows_of(rows: int, leaves: list[Tensor]) -> int:
    """The value of chunk_bytes that makes chunks of ``rows`` rows."""
    return rows * len(leaves[1]) * leaves[0].itemsize


def gradients(loss: Tensor, leaves: list[Tensor], dloss: Tensor | None = None) -> list[Tensor]:
    dloss = torch.ones_like(loss) if dloss is None else dloss
    return list(torch.autograd.grad(loss, leaves, dloss.to(loss)))


def loss_of(logits: Tensor, target: Tensor, weight: Any, **options: Any) -> Tensor:
    """The loss of logits, by its formula."""
    names = ("ignore_index", "label_smoothing", "z_loss", "softcap")
    defaults = (-100, 0.0, 0.0, 0.0)
    numbers = [options.get(n, d) for n, d in zip(names, defaults, strict=True)]
    number = {"none": 0, "mean": 1, "sum": 2}[options.get("reduction", "mean")]
    others: tuple[Any, ...] = (None, weight, *numbers, number, False)
    return _formula.forward(logits, target, *others)


def in_torch(leaves: list[Tensor], target: Tensor, weight: Any, **options: Any) -> Tensor:
    """The loss from whole logits, which PyTorch's product computes in the operands' dtype."""
    return loss_of(_torch.linear(*leaves), target, weight, **options)


def sizes_of_terms(
    leaves: list[Tensor], target: Tensor, weight: Any, dloss: float, **options: Any
) -> list[float]:
    """The magnitude of rounding errors in the loss and in each gradient. Each term that is rounded
    on the way (logits and their gradients) has an independent error of one unit; terms may cancel,
    errors do not.
    """
    logits = _torch.linear(*leaves).detach().requires_grad_()
    loss = loss_of(logits, target, weight, **options)
    squares = gradients(loss, [logits], torch.full_like(loss, dloss))[0] ** 2
    x, linear_weight = (leaf.detach() for leaf in leaves[:2])
    sums = [
        (squares * logits.detach() ** 2).sum() / dloss**2,
        squares @ linear_weight**2,
        squares.t() @ x**2,
        squares.sum(0),
    ]
    return [total.max().sqrt().item() if total.numel() else 0.0 for total in sums]


def check(leaves: list[Tensor], target: Tensor, dloss: float = 1.0, **options: Any) -> None:
    """Holds the loss and all gradients, from poisoned memory, to the tolerance rule."""
    own = {name: options.pop(name) for name in ("gradient", "chunk_bytes", "backend")}
    weight = options.pop("weight", None)
    with poisoned():
        loss = ours(leaves, target, weight=weight, **own, **options)
        found = [loss, *gradients(loss, leaves, torch.full_like(loss, dloss))]
    theirs = in_torch(leaves, target, weight, **options)
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    wide = None if weight is None else weight.double()
    exact = in_torch(exact_leaves, target, wide, **options)
    assert loss.dtype is leaves[0].dtype
    columns = zip(
        ("loss", "dx", "dweight", "dbias"),
        found,
        [theirs, *gradients(theirs, leaves, torch.full_like(theirs, dloss))],
        [exact, *gradients(exact, exact_leaves, torch.full_like(exact, dloss))],
        sizes_of_terms(exact_leaves, target, wide, dloss, **options),
        strict=False,
    )
    for name, a, b, c, size in columns:
        largest = c.detach().abs().max().item() if c.numel() else 0.0
        least = 4.0 * dloss if a.dtype.itemsize > 2 or name == "loss" else 0.0
        assert_close_to_reference(a, b, c, name, max(least, largest + size))
