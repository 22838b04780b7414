# SPDX-License-Identifier: MIT
"""Muon beside PyTorch's, and beside its iterations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.optim import muon

SHAPES = ((40, 90), (90, 40), (33, 33), (1, 7), (7, 1))
OPTIONS: tuple[dict[str, Any], ...] = (
    {"lr": 0.1},
    {"lr": 0.2, "nesterov": False, "weight_decay": 0.0, "momentum": 0.8},
    {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "lr": torch.tensor(0.05)},
    {"lr": 0.1, "adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1e-3},
)


@pytest.fixture(params=[False, True], ids=["whole", "halves"])
def by_halves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(muon, "_LEAST_BY_HALVES", 0)


def twins(dtype: torch.dtype = torch.float32) -> list[list[torch.nn.Parameter]]:
    numbers = [torch.randn(shape).to(dtype) for shape in SHAPES]
    return [[torch.nn.Parameter(x.clone()) for x in numbers] for _ in range(2)]


def set_gradients(*lists: list[torch.nn.Parameter]) -> None:
    for same in zip(*lists, strict=True):
        grad = torch.randn_like(same[0])
        for p in same:
            p.grad = grad.clone()


def distance(x: Tensor, reference: Tensor) -> float:
    reference = reference.double()
    return float((x.double() - reference).norm() / reference.norm())


def iterated(x: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """The polynomial of the singular values themselves."""
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    a, b, c = coefficients
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ v


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_steps_as_pytorchs_does(
    kind: torch.dtype, options: dict[str, Any], by_halves: None
) -> None:
    ours, theirs = twins(kind)
    start = [p.detach().clone() for p in ours]
    mine = tfk.optim.Muon(ours, **options)
    stock = torch.optim.Muon(theirs, **options)
    # PyTorch writes over the moment where it is bfloat16 and does not look ahead.
    keeps_moment = kind is torch.float32 or options.get("nesterov", True)
    for _ in range(2 if keeps_moment else 1):
        set_gradients(ours, theirs)
        mine.step()
        stock.step()
    for x, y, before in zip(ours, theirs, start, strict=True):
        assert not torch.equal(x, before)
        if kind is torch.float32:
            assert distance(x - before, y - before) < 0.03
        else:  # a step is some units in the last place
            torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
        a, b = (o.state[p]["momentum_buffer"] for o, p in ((mine, x), (stock, y)))
        if keeps_moment:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_iterations_are_as_near_as_pytorchs(shape: tuple[int, int], by_halves: None) -> None:
    from torch.optim import _muon

    x = torch.randn(shape)
    coefficients = (3.4445, -4.7750, 2.0315)
    reference = iterated(x, coefficients, 5)
    stock = _muon._zeropower_via_newtonschulz(x.clone(), coefficients, 5, 1e-7)
    ours = muon.orthogonal(x, coefficients, 5, 1e-7)
    assert ours.dtype is torch.bfloat16
    assert distance(ours, reference) <= 2 * distance(stock, reference) + 1e-2


@pytest.mark.parametrize("shape", [(5, 9), (64, 70), (2, 3)], ids=str)
def test_products_by_halves(shape: tuple[int, int], by_halves: None) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(muon.gram(x), x @ x.T)


def test_large_products_are_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *a, **b: (calls.append(1), product(*a, **b))[1])
    x = torch.randn(1024, 1024)
    torch.testing.assert_close(muon.gram(x), x @ x.T, rtol=1e-4, atol=1e-2)
    assert len(calls) == 3


@pytest.mark.parametrize("way", [(0, 1), (1, 0)], ids=["to torch", "from torch"])
def test_states_are_pytorchs(way: tuple[int, int]) -> None:
    lists = twins()
    classes = (tfk.optim.Muon, torch.optim.Muon)
    first, second = (classes[i](lists[j], lr=0.01) for j, i in enumerate(way))
    set_gradients(*lists)
    first.step()
    for p, q in zip(*lists, strict=True):
        q.data.copy_(p.data)
    second.load_state_dict(first.state_dict())
    set_gradients(*lists)
    first.step()
    second.step()
    for p, q in zip(*lists, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-2, atol=1e-2)
        torch.testing.assert_close(
            *(o.state[x]["momentum_buffer"] for o, x in ((first, p), (second, q)))
        )


def test_refuses_and_closes_as_pytorchs() -> None:
    with pytest.raises(ValueError, match="2D"):
        tfk.optim.Muon([torch.nn.Parameter(torch.ones(3))])
    weight = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = tfk.optim.Muon(
        [{"params": [weight]}, {"params": [torch.nn.Parameter(torch.ones(2, 2))]}]
    )

    def closure() -> Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 12
    assert isinstance(optimizer, torch.optim.Muon)
