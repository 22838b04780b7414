# SPDX-License-Identifier: MIT
"""Runs both passes of a function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .inputs import poisoned
from .tolerance import assert_close_to_reference


def both_passes(
    function: Callable[..., Tensor], leaves: Sequence[Tensor], dy: Tensor
) -> list[Tensor]:
    """The result, and the gradient of each leaf when ``dy`` arrives."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def check_layer(
    ours: Callable[..., Tensor], formula: Callable[..., Tensor], leaves: Sequence[Tensor],
    dy: Tensor, units: float,
) -> None:  # fmt: skip
    """Holds both passes of a linear layer, from poisoned memory, to the tolerance rule.

    Args:
        leaves: x, the weight and optionally the bias, of one dtype.
        units: magnitude of a sum per square root of its number of terms.
    """
    with poisoned():
        found = both_passes(ours, leaves, dy)
    theirs = both_passes(formula, leaves, dy)
    exact = both_passes(formula, [leaf.double() for leaf in leaves], dy.double())
    for name, a, b, c in zip(("y", "dx", "dweight", "dbias"), found, theirs, exact, strict=False):
        assert a.dtype == leaves[0].dtype
        # Terms of a sum cancel, but the error of each remains, and so do the errors of its
        # operands.
        terms = max(dy.shape[0], leaves[0].shape[-1], 1) if a.dtype.itemsize > 2 else 1
        assert_close_to_reference(a, b, c, name, magnitude=units * terms**0.5)
