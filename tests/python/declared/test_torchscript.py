# SPDX-License-Identifier: MIT
"""torch.jit.script, torch.jit.trace, save and load."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.functional import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
MODULES = {
    "layer_norm": lambda: tfk.nn.LayerNorm(8),
    "layer_norm, zero centered": lambda: tfk.nn.LayerNorm(8, zero_centered_weight=True),
    "layer_norm of two dims": lambda: tfk.nn.LayerNorm((4, 8), bias=False),
    "layer_norm, reference": lambda: tfk.nn.LayerNorm(8, backend="reference"),
    "rms_norm": lambda: tfk.nn.RMSNorm(8),
    "rms_norm, eps": lambda: tfk.nn.RMSNorm(8, eps=1e-3, elementwise_affine=False),
    "softmax": lambda: tfk.nn.Softmax(-1),
    "softmax, causal": lambda: tfk.nn.Softmax(-1, scale=0.5, causal=True),
    "softmax over 0": lambda: tfk.nn.Softmax(0),
    "log_softmax": lambda: tfk.nn.LogSoftmax(-1),
}
each_module = pytest.mark.parametrize("name", MODULES)


def _saved_and_loaded(module: Any) -> Any:
    memory = io.BytesIO()
    torch.jit.save(module, memory)
    memory.seek(0)
    return torch.jit.load(memory)


def _gradients(module: Any, x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    wanted = [leaf, *module.parameters()]
    y = module(leaf)
    return [y, *torch.autograd.grad(y, wanted, torch.ones_like(y).cumsum(-1))]


def _assert_same_module(graph: Any, module: Any) -> None:
    x = torch.randn(3, 4, 8)
    for a, b in zip(_gradients(graph, x), _gradients(module, x), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(graph(x), module(x))


@each_module
def test_scripted_modules(name: str) -> None:
    module = MODULES[name]()
    scripted = torch.jit.script(module)
    for graph in (scripted, _saved_and_loaded(scripted)):
        for _ in range(3):  # the executor makes another graph of it after a call or two
            _assert_same_module(graph, module)
    frozen = torch.jit.freeze(scripted.eval())
    x = torch.randn(3, 4, 8)
    assert torch.equal(frozen(x), module(x))


@each_module
@pytest.mark.parametrize("grad", [False, True])
def test_traced_modules(name: str, grad: bool) -> None:
    """The tracer's own check runs without gradients, and has to see the same graph."""
    module = MODULES[name]()
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(module, torch.randn(3, 4, 8))
    for graph in (traced, _saved_and_loaded(traced)):
        _assert_same_module(graph, module)


def test_a_traced_graph_serves_other_sizes() -> None:
    def block(x: Tensor) -> Tensor:
        y, s = add_rms_norm(x, x, (8,))
        return softmax(y, -1, causal=True) + layer_norm(s, (8,))

    traced = torch.jit.trace(block, torch.randn(4, 8))
    x = torch.randn(6, 8)
    assert torch.equal(traced(x), block(x))


@pytest.mark.parametrize("function", [add_layer_norm, add_rms_norm])
def test_traced_sums(function: Any) -> None:
    def call(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, s = function(x, residual, (8,), weight, zero_centered_weight=True)
        return y, s

    tensors = [torch.randn(4, 8), torch.randn(4, 8), torch.randn(8, requires_grad=True)]
    traced = torch.jit.trace(call, tensors)
    for a, b in zip(traced(*tensors), call(*tensors), strict=True):
        assert torch.equal(a, b)


def _block(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    y, s = add_rms_norm(x, x, [8], weight, bias=weight, zero_centered_weight=True)
    z, _ = add_layer_norm(y, s, [8], weight, eps=1e-3, backend="reference")
    z = softmax(z, -1, scale=2.0, mask=mask, causal=True)
    z = z + log_softmax(layer_norm(y, (8,), weight), -1, dtype=torch.float32)
    return z + rms_norm(x, [8], None, 1e-4, bias=weight)


def test_scripted_functions() -> None:
    scripted = torch.jit.script(_block)
    x, weight = torch.randn(8, 8), torch.randn(8, requires_grad=True)
    mask = torch.rand(8, 8) > 0.2
    mask.fill_diagonal_(True)
    for _ in range(3):
        ours, expected = scripted(x, weight, mask), _block(x, weight, mask)
        assert torch.equal(ours, expected)
        (a,) = torch.autograd.grad(ours.sum(), weight)
        (b,) = torch.autograd.grad(expected.sum(), weight)
        assert torch.equal(a, b)


@pytest.mark.parametrize("function", [layer_norm, rms_norm])
def test_a_function_alone_is_scripted(function: Any) -> None:
    scripted = torch.jit.script(function)
    x, weight = torch.randn(4, 8), torch.randn(8)
    assert torch.equal(scripted(x, [8], weight), function(x, (8,), weight))
    with pytest.raises(RuntimeError, match=f"{function.__name__}: weight has 7 elements"):
        scripted(x, [8], weight[:7])


def test_torchs_module_turned_into_ours_is_scripted() -> None:
    """It has the options of its class alone."""
    module = torch.nn.LayerNorm(8)
    module.__class__ = tfk.nn.LayerNorm
    _assert_same_module(torch.jit.script(module), module)
