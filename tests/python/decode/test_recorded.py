# SPDX-License-Identifier: MIT
"""Tests what runs while a step is recorded, which is the same on every device. Graphs themselves
are those of test_graphs.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.decode import _recorded
from transformer_kernels.decode._recorded import recorded_kernels
from transformer_kernels.fuse.derive import Gate
from transformer_kernels.testing.transformer import Transformer


@pytest.fixture
def products(monkeypatch):
    """The rows of the calls that our linear layer gets."""
    rows = []

    def counted(x, weight, bias=None):
        rows.append(x.shape[:-1].numel())
        return tfk.functional.linear(x, weight, bias)

    monkeypatch.setattr(_recorded, "linear", counted)
    return rows


@pytest.mark.parametrize("shape", [(5, 64), (1, 3, 64), (64,)])
@pytest.mark.parametrize("has_bias", [False, True])
@torch.no_grad()
def test_linear_layers_are_ours(products, device, shape, has_bias):
    layer = nn.Linear(64, 48, bias=has_bias, device=device)
    x = torch.randn(shape, device=device)
    with recorded_kernels():
        y = layer(x)
    assert products == [x.shape[:-1].numel()]
    torch.testing.assert_close(y, layer(x))
    assert len(products) == 1  # outside it is PyTorch's


@torch.no_grad()
def test_layers_of_gpt2_are_ours(products, device):
    bias, x, weight = (torch.randn(*s, device=device) for s in ((32,), (3, 16), (16, 32)))
    with recorded_kernels():
        y = torch.addmm(bias, x, weight)
    assert products == [3]
    torch.testing.assert_close(y, torch.addmm(bias, x, weight))


@torch.no_grad()
def test_other_sums_and_products_are_pytorchs(products, device):
    total, x, weight = (torch.randn(*s, device=device) for s in ((3, 32), (3, 16), (16, 32)))
    row, out = total[0], torch.empty_like(total)
    with recorded_kernels():
        found = [
            torch.addmm(total, x, weight), torch.addmm(row, x, weight, beta=2),
            torch.addmm(row, x, weight, alpha=3), torch.addmm(row, x, weight, out=out),
        ]  # fmt: skip
    assert not products
    assert found[3] is out
    for y, (beta, alpha) in zip(found[1:], ((2, 1), (1, 3), (1, 1)), strict=True):
        torch.testing.assert_close(y, beta * row + alpha * (x @ weight))
    torch.testing.assert_close(found[0], total + x @ weight)


class Quantized(torch.Tensor):
    """A weight that brings its own product."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            return "its own"
        return super().__torch_function__(func, types, args, kwargs)


def test_weights_that_bring_their_product_keep_it(products, device):
    weight = torch.randn(8, 16, device=device).as_subclass(Quantized)
    with recorded_kernels():
        assert F.linear(torch.randn(2, 16, device=device), weight) == "its own"
    assert not products


@torch.no_grad()
def test_gates_of_few_rows_open(device):
    x = torch.randn(1, 2, 32, device=device)
    model = Transformer().to(device).eval()
    tfk.fuse(model, (torch.randn(2, 40, 32, device=device),), measure=False)
    wanted = model(x)
    assert not Gate(32).opens(x)
    with recorded_kernels():
        assert Gate(32).opens(x)
        assert not Gate(32, inference=False).opens(x)
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)
    assert not Gate(32).opens(x)


def test_an_error_ends_it(products, device):
    x = torch.randn(2, 8, device=device)
    with pytest.raises(ZeroDivisionError), recorded_kernels():
        raise ZeroDivisionError
    F.linear(x, x)
    assert not products
    assert not Gate(32).opens(x)
