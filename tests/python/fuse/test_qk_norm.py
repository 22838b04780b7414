# SPDX-License-Identifier: MIT
"""Norms of the heads of queries and keys that the rotation behind them computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse import fuser
from transformer_kernels.fuse.patterns import rope
from transformer_kernels.fuse.patterns._normed import Normed
from transformer_kernels.testing import transformer as toys

from .counting import counted

WIDTH, HEADS, DIM, LENGTH = 32, 4, 8, 40


def apply_rotary(q, k, cos, sin):
    def rotated(x):
        a, b = x.chunk(2, -1)
        return x * cos.unsqueeze(1) + torch.cat((-b, a), -1) * sin.unsqueeze(1)

    return rotated(q), rotated(k)


class Attention(nn.Module):
    """Attention as Hugging Face writes it where queries and keys have norms."""

    reads = False

    def __init__(self, make):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.q_norm, self.k_norm = make(), make()
        for norm in (self.q_norm, self.k_norm):
            nn.init.normal_(norm.weight)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]), torch.linspace(1, 0.01, DIM // 2))[None]
        angles = torch.cat((angles, angles), -1)
        heads = [layer(x).unflatten(-1, (HEADS, DIM)) for layer in (self.q, self.k, self.v)]
        q = self.q_norm(heads[0]).transpose(1, 2)
        k = self.k_norm(heads[1]).transpose(1, 2)
        if self.reads:
            k = k * q.mean()
        q, k = apply_rotary(q, k, angles.cos(), angles.sin())
        return F.scaled_dot_product_attention(q, k, heads[2].transpose(1, 2))


NORMS = {
    "rms": lambda: nn.RMSNorm(DIM, eps=1e-5),
    "zero-centred": lambda: toys.EagerRMSNorm(DIM, offset=1.0),
}


@pytest.fixture
def calls(monkeypatch):
    return counted(monkeypatch, rope, "normed_and_rotated")


def fused(model, x, *patterns):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, (x,), measure=False, patterns=patterns)


def results(model, x):
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reads", [False, True])
def test_it_is_one_pass_unless_something_else_reads_a_norm(norm, reads, calls):
    model, x = Attention(NORMS[norm]), torch.randn(2, LENGTH, WIDTH)
    ours, plan = fused(model, x, "norm", "rope", "qk_norm")
    assert plan.counts() == {"norm": 2, "rope": 1, "qk_norm": 1}
    calls.clear()
    model.reads = ours.reads = reads
    for a, b in zip(results(ours, x), results(model, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.detach().abs().max()))
    assert len(calls) == (0 if reads else 1)
    assert type(ours.q_norm(torch.randn(2, 3, HEADS, DIM))) is torch.Tensor
    tfk.unfuse(ours)
    assert torch.equal(ours(x), model(x))


@pytest.mark.parametrize("grad", [False, True])
def test_under_autocast_heads_have_the_dtype_that_attention_takes(grad):
    model, x = Attention(NORMS["zero-centred"]), torch.randn(2, LENGTH, WIDTH)
    ours, _ = fused(model, x, "norm", "rope", "qk_norm")
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        y, wanted = ours(x), model(x)
    torch.testing.assert_close(y, wanted, rtol=0.05, atol=0.05, check_dtype=not grad)


def test_what_is_timed_under_autocast_is_one_pass(calls, monkeypatch):
    model, x = Attention(NORMS["zero-centred"]), torch.randn(2, LENGTH, WIDTH)
    passes = []

    def run(site, _prices):
        if site.pattern == "qk_norm":
            calls.clear()
            timed = site.trial(LENGTH)
            with torch.autocast("cpu", torch.bfloat16):
                timed.ours(*timed.tensors)
            passes.append(len(calls))

    monkeypatch.setattr(fuser, "_why_not", run)
    with torch.autocast("cpu", torch.bfloat16):
        fused(model, x, "norm", "rope", "qk_norm")
    assert passes == [1]


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_a_hook_on_a_norm_sees_true_values(name, calls):
    model, x = Attention(NORMS["rms"]), torch.randn(2, LENGTH, WIDTH)
    ours, _ = fused(model, x, "norm", "rope", "qk_norm")
    calls.clear()
    seen = []
    for m in (model, ours):
        getattr(m, name).register_forward_hook(lambda _m, _args, y: seen.append(y))
        m(x)
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)
    assert not calls


def test_norms_of_two_epsilons_stay_two(calls):
    model, x = Attention(NORMS["rms"]), torch.randn(2, LENGTH, WIDTH)
    ours, _ = fused(model, x, "norm", "rope", "qk_norm")
    calls.clear()
    ours.k_norm.eps = model.k_norm.eps = 0.5
    torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-5)
    assert not calls


def test_what_reads_memory_fails_loudly():
    norm = nn.RMSNorm(DIM)
    late = Normed.of(torch.randn(2, 3, HEADS, DIM), norm, torch.float32)
    assert late.transpose(1, 2).shape == (2, HEADS, 3, DIM)
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(RuntimeError, match="qk_norm"):
        torch.ops.aten.mul(late, 2)
