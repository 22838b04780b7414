# SPDX-License-Identifier: MIT
"""The layer of a mixture against a loop over tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import nn
from transformer_kernels.testing.inputs import randn

HIDDEN, FEATURES, EXPERTS, TOP_K = 12, 10, 6, 2


def made(**options: Any) -> nn.MoE:
    moe = nn.MoE(HIDDEN, FEATURES, EXPERTS, TOP_K, **options).double()
    for parameter in moe.parameters():  # biases too
        torch.nn.init.normal_(parameter, std=0.5)
    return moe


def by_tokens(moe: nn.MoE, x: Tensor) -> Tensor:
    """The routed experts, one token and one expert at a time."""
    routing, experts = moe.gate(x), moe.experts
    y = torch.zeros_like(x)
    for t in range(len(x)):
        for k in range(TOP_K):
            e = routing.indices[t, k]

            def layer(name: str, z: Tensor, e: Tensor = e) -> Tensor:
                bias = getattr(experts, f"{name}_bias")
                return z @ getattr(experts, name)[e].T + (0 if bias is None else bias[e])

            if hasattr(experts, "gate_up_proj"):
                gate, up = layer("gate_up_proj", x[t]).chunk(2)
            elif hasattr(experts, "gate_proj"):
                gate, up = layer("gate_proj", x[t]), layer("up_proj", x[t])
            else:
                gate, up = layer("up_proj", x[t]), torch.tensor(1.0)
            y[t] += routing.weights[t, k] * layer("down_proj", _ACTIVATE[experts.activation](
                gate, up
            ))  # fmt: skip
    return y


def _oai(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


_ACTIVATE: dict[str, Any] = {
    "swiglu": lambda gate, up: torch.nn.functional.silu(gate) * up,
    "gelu": lambda gate, up: torch.nn.functional.gelu(gate),  # noqa: ARG005
    "clamped_swiglu": _oai,
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packed": False, "bias": True},
        {"activation": "gelu", "bias": True},
        {"activation": "clamped_swiglu", "bias": True},
        {"score": "sigmoid", "expert_bias": True, "scale": 2.5, "groups": 3, "top_groups": 2},
    ],
    ids=lambda o: "-".join(map(str, o.values())) or "default",
)
def test_layer(options: dict[str, Any]) -> None:
    moe = made(**options)
    x = randn((9, HIDDEN), torch.float64)
    dy = randn((9, HIDDEN), torch.float64)
    leaves = [p for n, p in moe.named_parameters() if not n.startswith("shared")]
    ours, theirs = moe(x), by_tokens(moe, x)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, dy), torch.autograd.grad(theirs, leaves, dy), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_shared_experts() -> None:
    x = randn((4, 9, HIDDEN), torch.float64)
    for gated in (False, True):
        moe = made(shared_size=7, shared_gate=gated)
        alone = copy.deepcopy(moe)
        alone.shared_experts = None
        shared = moe.shared_experts(x)
        if gated:
            shared = shared * torch.sigmoid(x @ moe.shared_expert_gate.weight.T)
        torch.testing.assert_close(moe(x), alone(x) + shared)
    with pytest.raises(ValueError, match="MoE: shared_gate is True, expected False"):
        made(shared_gate=True)


def test_balance_capacity_and_copies() -> None:
    """The loss reaches the router; a copy and a state_dict do not hold it; evaluation has none."""
    moe = made(capacity_factor=0.5, balancer=nn.LoadBalancer(EXPERTS, aux_loss=1.0, z_loss=0.1))
    x = randn((8, 16, HIDDEN), torch.float64)
    moe(x)
    assert moe.drop_rate > 0.4
    moe.loss.backward()
    assert moe.gate.weight.grad is not None
    assert moe.gate.weight.grad.any()
    assert moe.balancer.metrics()["counts"].sum() == 8 * 16 * TOP_K
    twin = copy.deepcopy(moe)
    assert twin.loss == 0
    assert {*moe.state_dict()} == {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}
    torch.testing.assert_close(twin(x), moe(x))
    assert moe.eval()(x).shape == x.shape
    assert moe.loss == 0


def test_compiles() -> None:
    """In one graph, with gradients."""
    torch._dynamo.reset()
    moe = nn.MoE(HIDDEN, FEATURES, EXPERTS, TOP_K)
    x = torch.randn(5, HIDDEN)
    compiled = torch.compile(moe, backend="eager", fullgraph=True)
    y = compiled(x)
    torch.testing.assert_close(y, moe(x))
    (y.sum() + moe.loss).backward()
    assert all(p.grad is not None for p in moe.parameters())
