# SPDX-License-Identifier: MIT
"""A linear layer that computes the activation behind it, which a larger module asks for."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse.patterns.linear_then_act import Activated
from transformer_kernels.ops.linear import _ahead

from .counting import counted

WIDTH, HIDDEN = 16, 24


class Layer(nn.Module):
    """A layer that has no module for its MLP."""

    def __init__(self, act):
        super().__init__()
        self.norm, self.fc1 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN)
        self.act, self.fc2 = act, nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class Eager(nn.Module):
    """An activation that calls no function for it."""

    def forward(self, x):
        return x * torch.sigmoid(x)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Small products run as large ones do; the calls that computed both are counted."""
    monkeypatch.setattr(_ahead, "refusal", lambda *_, **__: None)
    return counted(monkeypatch, _ahead, "_forward")


def fused(model, x):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, (x,), measure=False, patterns=["linear_then_act"])


def away_from_corners(model):
    """Draws rows of which none has an activation near 0, where the slope of relu jumps."""
    while True:
        x = torch.randn(2, 20, WIDTH)
        if bool((model.fc1(model.norm(x)).abs() > 1e-5).all()):
            return x


def gradients(model, x, order):
    """Gradients of the first or second order."""
    x = x.clone().requires_grad_()
    leaves = [x, *model.parameters()]
    found = torch.autograd.grad((model(x) ** 2).sum(), leaves, create_graph=order == 2)
    if order == 2:
        found = torch.autograd.grad(sum((g**2).sum() for g in found), leaves, allow_unused=True)
    return [g for g in found if g is not None]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("act", [nn.GELU(), nn.SiLU(), Eager(), F.gelu, F.silu, F.relu])
def test_both_are_computed_at_once_with_the_gradients_of_two_modules(act, order, calls):
    model = Layer(act)
    x = away_from_corners(model)
    ours, plan = fused(model, x)
    assert plan.counts() == {"linear_then_act": 1}
    calls.clear()
    torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 1
    for a, b in zip(gradients(ours, x, order), gradients(model, x, order), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.detach().abs().max()))


@pytest.mark.parametrize("act", [nn.GELU(), F.gelu])
@pytest.mark.parametrize("change", ["replaced", "in place"])
def test_a_result_that_changes_on_the_way_is_activated_as_it_is(act, change):
    class Changed(Layer):
        def forward(self, x):
            z = self.fc1(x)
            if change == "in place":
                z += 1
            else:
                z = z * 2
            return self.fc2(self.act(z))

    x = torch.randn(2, 20, WIDTH)
    plain = Layer(act)
    ours, _ = fused(plain, x)
    stock = copy.deepcopy(plain)
    for _ in range(5):  # it is given up after some misses
        results = []
        for m in (ours, stock):
            forward = Changed.forward.__get__(m)
            y = forward(x)
            y.sum().backward()
            results.append([y, *(p.grad for p in m.parameters() if p.grad is not None)])
            m.zero_grad()
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert type(ours.fc1(x)) is torch.Tensor


def test_the_layers_own_result_and_its_gradient_are_seen():
    for act in (nn.GELU(), F.gelu):
        model, x = Layer(act), torch.randn(2, 20, WIDTH)
        ours, _ = fused(model, x)
        seen = []

        def watch(z, seen=seen):
            z.register_hook(seen.append)
            seen.append(z.detach().clone().as_subclass(torch.Tensor))
            return z

        for m in (model, ours):
            z = watch(m.fc1(m.norm(x)))
            m.fc2(m.act(z)).sum().backward()
        torch.testing.assert_close(seen[2], seen[0])
        torch.testing.assert_close(seen[3], seen[1])


def test_no_cycle_keeps_what_nobody_asks_for():
    ours, _ = fused(Layer(F.gelu), torch.randn(2, 20, WIDTH))
    z = ours.fc1(torch.randn(2, 20, WIDTH))
    assert type(z) is Activated
    waiting = weakref.ref(z._tfk_waiting.z)
    gc.disable()
    try:
        del z
        assert waiting() is None
    finally:
        gc.enable()


def test_another_function_and_one_in_place_get_the_true_value():
    ours, _ = fused(Layer(F.relu), torch.randn(2, 20, WIDTH))
    x = torch.randn(2, 20, WIDTH)
    z = F.linear(x, ours.fc1.weight, ours.fc1.bias)
    torch.testing.assert_close(F.gelu(ours.fc1(x)), F.gelu(z), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(F.relu(ours.fc1(x), inplace=True), F.relu(z), rtol=1e-4, atol=1e-5)
