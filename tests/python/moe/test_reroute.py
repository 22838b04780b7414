# SPDX-License-Identifier: MIT
"""Assignments of full experts, against a loop over tokens."""

from __future__ import annotations

import math

import pytest
import torch

from transformer_kernels import functional as F
from transformer_kernels import nn


def _by_tokens(candidates: list[list[int]], k: int, experts: int, factor: float) -> list[list[int]]:
    """Fills experts with the first candidates, then goes through the others, one column after the
    other."""
    capacity = max(1, math.ceil(factor * len(candidates) * k / experts))
    load = [0] * experts
    slots = [list(range(k)) for _ in candidates]
    free: list[list[int]] = [[] for _ in candidates]
    for t, own in enumerate(candidates):
        for slot in range(k):
            if load[own[slot]] < capacity:
                load[own[slot]] += 1
            else:
                free[t].append(slot)
    for column in range(k, len(candidates[0]) if candidates else k):
        for t, own in enumerate(candidates):
            if free[t] and load[own[column]] < capacity:
                load[own[column]] += 1
                slots[t][free[t].pop(0)] = column
    return slots


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
@pytest.mark.parametrize(
    ("tokens", "k", "count", "experts"),
    [(1, 1, 1, 1), (40, 2, 5, 7), (33, 1, 4, 4), (0, 2, 3, 5)],
)
def test_a_loop_over_tokens(
    tokens: int, k: int, count: int, experts: int, factor: float, device: str
) -> None:
    likes = torch.rand(tokens, experts, device=device) + torch.linspace(0, 1, experts).to(device)
    candidates = likes.topk(count).indices.int()
    slots = F.moe_reroute(candidates, k, experts, capacity_factor=factor)
    assert slots.tolist() == _by_tokens(candidates.tolist(), k, experts, factor)
    rates = [
        F.moe_dispatch(indices, experts, capacity_factor=factor).drop_rate()
        for indices in (candidates[:, :k], candidates.gather(1, slots))
    ]
    assert rates[1] <= rates[0]


def test_a_layer_that_drops_less() -> None:
    """Weights are those of the experts that are taken; the balance's loss sees those wanted."""
    torch.manual_seed(4)
    moe = nn.MoE(16, 8, 6, 2, capacity_factor=1.0, spare=2)
    with torch.no_grad():
        moe.gate.weight[1] += 1.0
    x = torch.randn(3, 40, 16) + 0.5
    routing = moe.gate(x, 1.0)
    logits = x @ moe.gate.weight.T
    chosen = logits.gather(-1, routing.indices.long())
    torch.testing.assert_close(routing.weights, chosen.softmax(-1))
    assert torch.equal(routing.wanted, logits.topk(2).indices.int())
    moe(x)
    rate, counts = moe.drop_rate, moe.balancer.metrics()["counts"]
    assert torch.equal(counts, F.expert_counts(routing.wanted, 6).sum(0))
    moe.loss.backward()
    moe.gate.spare = 0
    moe(x)
    assert rate < moe.drop_rate


def test_bad_input() -> None:
    candidates = torch.zeros(4, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match="moe_reroute: top_k is 4, expected 1 to 3"):
        F.moe_reroute(candidates, 4, 8, capacity_factor=1.0)
    with pytest.raises(ValueError, match="capacity_factor is -1, expected a finite number above 0"):
        F.moe_reroute(candidates, 1, 8, capacity_factor=-1.0)
    with pytest.raises(ValueError, match="MoERouter: spare is 7, expected 0 to 6"):
        nn.MoERouter(8, 8, 2, spare=7)
