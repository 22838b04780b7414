# SPDX-License-Identifier: MIT
"""Operands near the smallest numbers, on a CPU: those that multiply pairs of bfloat16 lose them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels.functional import attention
from transformer_kernels.testing.inputs import randn

pytestmark = pytest.mark.usefixtures("one_thread")


def results(leaves: list[Tensor], gradient: Tensor, ours: bool) -> list[Tensor]:
    """The result (B, T, H, D), and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    if ours:
        y = attention(*leaves, causal=True)
    else:
        heads = [x.transpose(1, 2) for x in leaves]
        y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
    return [y, *torch.autograd.grad(y, leaves, gradient)]


@pytest.mark.parametrize("tiny", ["q", "k", "v", "gradient"])
@pytest.mark.parametrize(
    ("length", "strided"), [(2, False), (3, False), (9, True), (70, False), (200, True)]
)
def test_the_smallest_numbers_stay(tiny: str, length: int, strided: bool) -> None:
    """The error against float64 is at most twice PyTorch's and one step of subnormal numbers."""
    low = torch.bfloat16
    shape = (2, 3, length, 16) if strided else (2, length, 3, 16)
    made = {name: randn(shape, low) for name in ("q", "k", "v", "gradient")}
    smallest = torch.finfo(low).tiny
    made[tiny] = (made[tiny].double() * smallest / 2).to(low)
    if strided:
        made = {name: x.transpose(1, 2) for name, x in made.items()}
    *leaves, gradient = made.values()
    exact = results([x.double() for x in leaves], gradient.double(), ours=False)
    found = results(leaves, gradient, ours=True)
    stock = results(leaves, gradient, ours=False)
    for name, a, b, c in zip(("y", "dq", "dk", "dv"), found, stock, exact, strict=True):
        errors = [(x.double() - c).abs().max().item() for x in (a, b)]
        step = smallest * torch.finfo(low).eps
        room = step + 4 * torch.finfo(low).eps * c.abs().max().item()
        assert errors[0] <= 2 * errors[1] + room, name


def test_which_numbers_are_tiny() -> None:
    """A number at any place of any operand's rows is seen."""
    for length, place in itertools.product((1, 3, 70), (0, 5, 15)):
        q, k, v = (torch.ones(1, length, 1, 16, dtype=torch.bfloat16) for _ in range(3))
        v[..., place] = 2.0**-130
        assert (attention(q, k, v)[..., place] == 2.0**-130).all()
