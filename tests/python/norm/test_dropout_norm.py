# SPDX-License-Identifier: MIT
"""The norms of ``dropout(x + x_bias) + residual``: what stands in one pass is what stands apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.testing.inputs import LAYOUTS, randn
from transformer_kernels.testing.reference import layer_norm, rms_norm
from transformer_kernels.testing.tolerance import assert_close_to_reference

P, EPS = 0.3, 1e-5
Both = tuple[Tensor, Tensor]


def _seed() -> Tensor:
    return torch.tensor([11, 7])


def _layer_norm(
    x: Tensor, x_bias: Any, residual: Tensor, weight: Any, bias: Any, **options: Any
) -> Both:
    options = {"p": P, "seed": _seed(), **options}
    return F.bias_dropout_add_layer_norm(x, x_bias, residual, weight, bias, eps=EPS, **options)


def _rms_norm(
    x: Tensor, x_bias: Any, residual: Tensor, weight: Any, bias: Any, **options: Any
) -> Both:
    options = {"p": P, "seed": _seed(), **options}
    return F.bias_dropout_add_rms_norm(x, x_bias, residual, weight, bias=bias, eps=EPS, **options)


FUSED = {"layer_norm": _layer_norm, "rms_norm": _rms_norm}
TORCH = {
    "layer_norm": lambda s, w, b: torch.nn.functional.layer_norm(s, s.shape[-1:], w, b, EPS),
    "rms_norm": lambda s, w, b: torch.nn.functional.rms_norm(s, s.shape[-1:], w, EPS) + b,
}
EXACT = {"layer_norm": layer_norm, "rms_norm": rms_norm}
each = pytest.mark.parametrize("name", FUSED)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    """x, x_bias, residual, weight, bias"""
    row = shape[-1:]
    return [randn(size, dtype, device).requires_grad_() for size in (shape, row, shape, row, row)]


def _apart(norm: Callable[..., Tensor], *inputs: Tensor) -> Both:
    """The same by dropout's mask, in the dtype of the inputs."""
    x, x_bias, residual, weight, bias = inputs
    ones = torch.ones_like(x, dtype=torch.float64)
    factors = F.dropout(ones, P, seed=_seed()).to(torch.promote_types(x.dtype, torch.float32))
    s = ((x + x_bias) * factors + residual).to(x.dtype)
    return norm(s, weight, bias), s


@each
@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
@pytest.mark.parametrize("shape", [(7, 40), (5, 33), (2, 3, 1032)], ids=str)
def test_forward_and_backward(
    name: str, shape: tuple[int, ...], backend: str, dtype: torch.dtype, device: str
) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    inputs = _inputs(shape, dtype, device)
    gradients = [randn(shape, dtype, device) for _ in range(2)]
    y, s = FUSED[name](*inputs, backend=backend)
    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]

    def exact_norm(s: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return EXACT[name](s, weight, bias, eps=EPS)

    expected = _apart(exact_norm, *exact_inputs)
    theirs = _apart(TORCH[name], *inputs)
    for what, *group in zip(("y", "sum"), (y, s), theirs, expected, strict=True):
        assert_close_to_reference(*group, what, magnitude=4.0)

    def gradients_of(results: Both, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        given = [g.to(r.dtype) for g, r in zip(gradients, results, strict=True)]
        return torch.autograd.grad(results, leaves, given)

    ours = gradients_of((y, s), inputs)
    names = ("dx", "dx_bias", "dresidual", "dweight", "dbias")
    rows = y.numel() // shape[-1]
    for what, *group in zip(
        names, ours, gradients_of(theirs, inputs), gradients_of(expected, exact_inputs), strict=True
    ):
        assert_close_to_reference(*group, what, magnitude=4.0 * rows)


@each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(name: str, layout: str, device: str) -> None:
    x, x_bias, residual, weight, bias = _inputs((4, 3, 24), torch.float32, device)
    inputs = [LAYOUTS[layout](x.detach()), x_bias, LAYOUTS[layout](residual.detach()), weight, bias]
    dense = [tensor.contiguous() for tensor in inputs]
    for found, expected in zip(FUSED[name](*inputs), FUSED[name](*dense), strict=True):
        torch.testing.assert_close(found, expected)


@each
def test_derivatives(name: str, device: str) -> None:
    inputs = _inputs((3, 5), torch.float64, device)
    assert torch.autograd.gradcheck(FUSED[name], inputs)
    assert torch.autograd.gradgradcheck(FUSED[name], inputs)


@each
def test_one_result_alone(name: str, device: str) -> None:
    """Post-norm uses y alone, the last block of a pre-norm model the sum."""
    inputs = _inputs((6, 48), torch.float64, device)
    for index in (0, 1):
        result = FUSED[name](*inputs)[index]
        expected = _apart(TORCH[name], *inputs)[index]
        dy = randn((6, 48), torch.float64, device)
        found = torch.autograd.grad(result, inputs, dy, allow_unused=True)
        exact = torch.autograd.grad(expected, inputs, dy, allow_unused=True)
        for gradient, wanted, leaf in zip(found, exact, inputs, strict=True):
            wanted = torch.zeros_like(leaf) if wanted is None else wanted
            gradient = torch.zeros_like(leaf) if gradient is None else gradient
            torch.testing.assert_close(gradient, wanted)


@each
def test_without_bias_and_weight(name: str, device: str) -> None:
    x, _, residual, *_ = _inputs((6, 48), torch.float32, device)
    y, s = FUSED[name](x, None, residual, None, None)
    torch.testing.assert_close(s, F.bias_dropout_add(x, None, residual, P, seed=_seed()))
    (expected,) = (EXACT[name](s.double(), None, None, eps=EPS),)
    torch.testing.assert_close(y, expected.float())


@each
def test_parameters_of_float32(name: str, device: str) -> None:
    """x_bias of the rows' dtype beside float32 weights, and the other way round."""
    x, x_bias, residual, weight, bias = _inputs((6, 48), torch.bfloat16, device)
    wide = [parameter.detach().float().requires_grad_() for parameter in (weight, bias)]
    y, _ = FUSED[name](x, x_bias, residual, *wide)
    dx_bias, dweight = torch.autograd.grad(y.float().sum(), (x_bias, wide[0]))
    assert (dx_bias.dtype, dweight.dtype) == (torch.bfloat16, torch.float32)
    y, _ = FUSED[name](x, x_bias.detach().float(), residual, weight, bias)
    assert y.dtype is torch.bfloat16


@each
@pytest.mark.parametrize("x_bias", [False, True])
def test_evaluation(name: str, x_bias: bool, device: str) -> None:
    x, given, residual, weight, bias = _inputs((6, 48), torch.float32, device)
    added = given if x_bias else None
    y, s = FUSED[name](x, added, residual, weight, bias, training=False)
    torch.testing.assert_close(s, x + residual + (given if x_bias else 0))
    torch.testing.assert_close(y, TORCH[name](s, weight, bias))


@each
def test_compiled(name: str, device: str) -> None:
    inputs = _inputs((8, 64), torch.float32, device)

    def call(*inputs: Tensor) -> Both:
        found: Both = FUSED[name](*inputs)
        return found

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(*inputs), call(*inputs), strict=True):
        assert torch.equal(found, expected)
    sum(result.sum() for result in compiled(*inputs)).backward()  # type: ignore[union-attr]
    assert all(tensor.grad is not None for tensor in inputs)


@each
def test_draws_anew(name: str, device: str) -> None:
    inputs = _inputs((8, 64), torch.float32, device)
    torch.manual_seed(5)
    _, first = FUSED[name](*inputs, seed=None)
    _, second = FUSED[name](*inputs, seed=None)
    torch.manual_seed(5)
    assert not torch.equal(first, second)
    assert torch.equal(first, FUSED[name](*inputs, seed=None)[1])
