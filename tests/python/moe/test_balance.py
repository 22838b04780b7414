# SPDX-License-Identifier: MIT
"""The losses that balance the load, and the modules around the router."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels import nn
from transformer_kernels.testing.inputs import randn


def _switch(logits: Tensor, indices: Tensor, experts: int) -> Tensor:
    """The loss of one sequence, as in Hugging Face's Mixtral."""
    mask = torch.nn.functional.one_hot(indices.long(), experts).to(logits.dtype)
    share = mask.sum((0, 1)) / mask.sum()
    return experts * (share * torch.softmax(logits, -1).mean(0)).sum()


def test_losses_and_gradients(device: str) -> None:
    logits = randn((3, 20, 12), torch.float64, device).requires_grad_()
    _, indices, importance, lse = F.moe_router(logits, 4, sequences=3)
    counts = F.expert_counts(indices, 12, 3)
    assert counts.sum(1).tolist() == [80] * 3
    of_batch = F.load_balancing_loss(importance.sum(0, True), counts.sum(0, True))
    of_sequences = F.load_balancing_loss(importance, counts)
    expected = (
        _switch(logits.flatten(0, 1), indices.flatten(0, 1), 12),
        torch.stack([_switch(x, i, 12) for x, i in zip(logits, indices, strict=True)]).mean(),
        torch.logsumexp(logits, -1).square().mean(),
    )
    for ours, theirs in zip((of_batch, of_sequences, F.router_z_loss(lse)), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (ours, theirs)]
        torch.testing.assert_close(*gradients)


def test_counts_of_samples(device: str) -> None:
    indices = torch.randint(0, 5, (3, 8, 2), device=device)
    found = torch.func.vmap(lambda i: F.expert_counts(i, 5, 2))(indices)
    assert torch.equal(found, torch.stack([F.expert_counts(i, 5, 2) for i in indices]))


@pytest.mark.parametrize("kind", ["batch", "sequence", "global"])
def test_balancer(kind: str, device: str) -> None:
    torch.manual_seed(5)
    router = nn.MoERouter(16, 6, 2, device=device)
    balancer = nn.LoadBalancer(6, kind=kind, aux_loss=0.5, z_loss=0.1).to(device)
    x = randn((2, 9, 16), torch.float32, device)
    routing = router(x)
    loss = balancer(routing)
    logits = x @ router.weight.t()
    parts = zip(logits, routing.indices, strict=True)
    switch = [_switch(z, i, 6) for z, i in parts]
    whole = _switch(logits.flatten(0, 1), routing.indices.flatten(0, 1), 6)
    balance = torch.stack(switch).mean() if kind == "sequence" else whole
    expected = 0.5 * balance + 0.1 * torch.logsumexp(logits, -1).square().mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    loss.backward()
    assert router.weight.grad is not None
    metrics = balancer.metrics()
    assert metrics["counts"].sum() == 36
    torch.testing.assert_close(metrics["load"].mean().item(), 1.0)
    assert 0 < metrics["entropy"] <= 1
    router.eval()
    routing = router(x)
    assert routing.importance is None
    assert balancer(routing) == 0


def test_the_bias_balances_without_a_loss(device: str) -> None:
    """An expert that all tokens like loses its lead."""
    torch.manual_seed(7)
    router = nn.MoERouter(8, 4, 1, score="sigmoid", expert_bias=True, device=device)
    balancer = nn.LoadBalancer(4, aux_loss=0.0, bias_rate=0.02).to(device)
    x = torch.randn(400, 8, device=device) + 8 * router.weight[1].detach()
    balancer(router(x))
    before = balancer.metrics()["max_load"]
    for _ in range(60):
        balancer(router(x))
        assert router.expert_bias is not None
        balancer.update_bias(router.expert_bias)
    assert before > 3
    assert balancer.metrics()["max_load"] < 1.6


def test_gating(device: str) -> None:
    gating = nn.ExpertGating(nn.MoERouter(16, 6, 2), capacity_factor=0.5).to(device)
    x = randn((30, 16), torch.float32, device)
    weights, indices, dispatch, loss = gating(x)
    assert dispatch.counts().max() <= math.ceil(0.5 * 60 / 6)
    assert dispatch.drop_rate() >= 0.5
    assert indices.shape == weights.shape == (30, 2)
    loss.backward()
    keys = {name for name, _ in gating.named_parameters()}
    assert keys == {"router.weight"}
    assert {*gating.state_dict()} == keys


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"MoERouter: top_k is 9, expected 1 to 8"):
        nn.MoERouter(16, 8, 9)
    with pytest.raises(ValueError, match=r"LoadBalancer: kind is 'all', expected"):
        nn.LoadBalancer(8, kind="all")
    router = nn.MoERouter(16, 8, 2)
    with pytest.raises(ValueError, match=r"LoadBalancer: importance has 8 columns, expected 7"):
        nn.LoadBalancer(7)(router(torch.zeros(4, 16)))
    with pytest.raises(ValueError, match=r"load_balancing_loss: counts has shape \(2, 7\)"):
        F.load_balancing_loss(torch.ones(2, 8), torch.ones(2, 7))
    with pytest.raises(ValueError, match=r"expert_counts: sequences is 3, expected a divisor of 8"):
        F.expert_counts(torch.zeros(4, 2, dtype=torch.int32), 8, 3)
