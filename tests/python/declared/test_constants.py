# SPDX-License-Identifier: MIT
"""Constant arguments: tensors that have no gradient, as Parameters and made in inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels import functional as F
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import as_tuple
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import combinations

HEADS, ROWS, LABELS = (1, 4, 2, 8), (4, 8), torch.tensor([0, 1, 2, 3])


def _quantized(x: Tensor, scales: Tensor) -> Tensor:
    packed, _ = F.quantize_weight(torch.linspace(-1, 1, 32).view(4, 8), 8, 4)
    return F.quantized_linear(x, packed.to(x.device), scales)


# The constant's shape, the shape of what is differentiated, and the call of both.
CONSTANTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]] = {
    "alibi_slopes": ((2,), HEADS, lambda x, c: F.attention(x, x, x, alibi_slopes=c)),
    "cos": ((4, 4), HEADS, lambda x, c: F.rope(x, None, c, c.detach())),
    "sin": ((4, 4), HEADS, lambda x, c: F.rope(x, None, c.detach(), c)),
    "cos of qk_norm": ((4, 4), HEADS, lambda x, c: F.qk_norm(x, cos=c, sin=c.detach())),
    "weight": ((8,), ROWS, lambda x, c: F.cross_entropy(x, LABELS.to(x.device), c)),
    "weight of a linear loss": (
        (8,), ROWS, lambda x, c: F.linear_cross_entropy(x, x.new_ones(8, 8),
                                                        LABELS.to(x.device), weight=c)
    ),
    "scales": ((4, 2), ROWS, _quantized),
}  # fmt: skip
each_constant = pytest.mark.parametrize(("shape", "of", "call"), CONSTANTS.values(), ids=CONSTANTS)


@each_constant
def test_parameters_where_no_gradient_is_recorded(
    shape: Any, of: Any, call: Callable[..., Any], device: str
) -> None:
    x, constant = torch.randn(of, device=device), torch.rand(shape, device=device)
    expected = call(x, constant)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(call(x, torch.nn.Parameter(constant)), expected)


@each_constant
def test_parameters_are_refused_where_one_is(
    shape: Any, of: Any, call: Callable[..., Any], device: str
) -> None:
    x, constant = torch.randn(of, device=device), torch.rand(shape, device=device)
    with pytest.raises(ValueError, match=r"requires a gradient, expected a constant \(it has none"):
        call(x, torch.nn.Parameter(constant))


@pytest.mark.parametrize("op", DECLARED.values(), ids=lambda op: op.name)
def test_inference_tensors_of_every_op(op: Op, device: str) -> None:
    """Every constant of a call that is differentiated, floating-point or not, may be one."""
    for given in combinations(op, device):
        names = [n for n in op.differentiable if given[n] is not None]
        leaves = {n: given[n].clone().requires_grad_() for n in names}
        with torch.inference_mode():
            constants = {
                n: v.clone() for n, v in given.items() if isinstance(v, Tensor) and n not in leaves
            }
        found, expected = (
            torch.autograd.grad(
                [
                    y.sum()
                    for y in as_tuple(op.call(*(given | others | leaves).values()))
                    if y.requires_grad
                ],
                list(leaves.values()),
            )
            for others in (constants, {})
        )
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("way", ["constructor", "cast"])
def test_modules_made_in_inference_mode(way: str, device: str) -> None:
    layer = torch.nn.Linear(8, 4)
    with torch.inference_mode(way == "constructor"):
        rope = tfk.nn.RotaryEmbedding(8, 16)
        quantized = tfk.nn.QuantizedLinear.from_linear(layer, group_size=8)
    with torch.inference_mode():
        rope.to(device).to(torch.bfloat16)
        quantized.to(device)
    q = torch.randn(1, 4, 2, 8, device=device, requires_grad=True)
    rope.float()(q).sum().backward()
    x = torch.randn(20, 8, device=device, requires_grad=True)
    quantized(x).sum().backward()
    assert q.grad is not None
    assert x.grad is not None


def test_masks_and_labels_made_in_inference_mode(device: str) -> None:
    x = torch.randn(2, 4, 8, device=device, requires_grad=True)
    with torch.inference_mode():
        mask = torch.ones(4, 4, dtype=torch.bool, device=device)
        labels = torch.zeros(2, 4, dtype=torch.int64, device=device)
    F.scaled_dot_product_attention(x, x, x, attn_mask=mask).sum().backward()
    F.softmax(x @ x.mT, -1, mask=mask).sum().backward()
    F.cross_entropy(x.flatten(0, 1), labels.flatten()).backward()
    F.linear_cross_entropy(x, torch.randn(8, 8, device=device), labels).backward()
    F.embedding(labels, torch.randn(8, 4, device=device, requires_grad=True)).sum().backward()
