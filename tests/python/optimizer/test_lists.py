# SPDX-License-Identifier: MIT
"""Lion; and the kernels beside the formulas that serve other devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.ops.optimizer import _formula, _states
from transformer_kernels.testing.tolerance import assert_close_to_reference

SHAPES = ((40, 70), (300,), (0,), ())
OPTIONS: tuple[dict[str, Any], ...] = (
    {"max_norm": 0.5, "skip_nonfinite": True},
    {"master_weights": True},
    {"master_weights": True, "state_dtype": torch.bfloat16, "seed": 2**62 + 5},
    {"stochastic_weights": True, "state_dtype": torch.bfloat16, "seed": 3},
    {"state_dtype": torch.uint8, "seed": 3},
)


def parameters(dtype: torch.dtype, device: str = "cpu") -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.randn(shape).to(device, dtype)) for shape in SHAPES]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def twins(cls: Any, dtype: torch.dtype, device: str, **options: Any) -> list[Any]:
    """Two optimizers of the same parameters, of which the second runs the formula."""
    rule = _formula.adamw_step if cls is tfk.optim.AdamW else _formula.lion_step
    params = parameters(dtype, device)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
    for p, q in zip(params, copies, strict=True):
        q.grad = p.grad.clone()
    options = {"lr": 1e-2, **options}
    ours, formula = cls(params, **options), cls(copies, **options)
    formula._raw = partial(_formula.run_list, rule)
    return [ours, formula]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cls", [tfk.optim.AdamW, tfk.optim.Lion])
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_the_formula_is_the_kernel(
    device: str, cls: Any, narrow: torch.dtype, options: dict[str, Any], tensor_rate: bool
) -> None:
    """They may differ by one rounding, since one of them rounds sums of products once."""
    lr = torch.tensor(1e-2, device=device) if tensor_rate else 1e-2
    both = twins(cls, narrow, device, lr=lr, **options)
    for optimizer in both:
        optimizer.step()
    size = 2 * torch.finfo(narrow).eps
    for p, q in zip(*(o.param_groups[0]["params"] for o in both), strict=True):
        # The sign of a mean near 0 may differ, and so the step of Lion.
        slack = 2.1e-2 if cls is tfk.optim.Lion else 1e-3
        torch.testing.assert_close(p, q, rtol=size, atol=slack)
        for name, ours in both[0].state[p].items():
            formula = both[1].state[q][name]
            if ours.dtype is torch.uint8:
                far = (ours.int() - formula.int()).abs()
                assert not ((far > 1) & (far < 255)).any()  # 255 is 1 across the zero of signs
            else:
                torch.testing.assert_close(ours, formula, rtol=size, atol=1e-6)
        assert both[0].state[p]["step"] == both[1].state[q]["step"] == 1


def test_random_bits_of_the_formula_are_those_of_the_kernel(device: str) -> None:
    both = twins(tfk.optim.AdamW, torch.float32, device, state_dtype=torch.bfloat16, seed=11)
    for optimizer in both:
        optimizer.param_groups[0]["betas"] = (0.0, 0.0)  # moments without arithmetic
        optimizer.step()
    for p, q in zip(*(o.param_groups[0]["params"] for o in both), strict=True):
        assert torch.equal(both[0].state[p]["exp_avg"], both[1].state[q]["exp_avg"])
    first = both[0].param_groups[0]["params"][0]
    assert not torch.equal(both[0].state[first]["exp_avg"], first.grad.bfloat16())


@pytest.mark.parametrize("precision", [torch.float64, torch.float32], ids=str)
def test_lion_is_its_formula(device: str, precision: torch.dtype) -> None:
    params = parameters(precision, device)
    before = [p.detach().to(torch.float64, copy=True) for p in params]
    certain = [torch.ones_like(p, dtype=torch.bool) for p in before]
    optimizer = tfk.optim.Lion(params, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.5)
    moments = [torch.zeros_like(p) for p in before]
    for _ in range(3):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
        for i, p in enumerate(params):
            g = p.grad.double()
            mean = 0.8 * moments[i] + 0.2 * g
            certain[i] &= mean.abs() > 1e-5  # signs below are those of rounding errors
            before[i] = before[i] * (1 - 1e-2 * 0.5) - 1e-2 * mean.sign()
            moments[i] = 0.95 * moments[i] + 0.05 * g
    for p, expected, moment, sure in zip(params, before, moments, certain, strict=True):
        assert_close_to_reference(p.detach()[sure], expected[sure].to(p.dtype), expected[sure])
        state = optimizer.state[p]["exp_avg"]
        assert_close_to_reference(state, moment.to(p.dtype), moment, magnitude=2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "Lion: lr is -1.0, expected at least 0"),
        ({"lr": float("nan")}, "Lion: lr is nan, expected at least 0"),
        ({"weight_decay": -0.5}, "Lion: weight_decay is -0.5, expected at least 0"),
        ({"betas": (0.9, 1.0)}, r"Lion: betas are \(0.9, 1.0\), expected from 0 to below 1"),
        ({"lr": None}, "Lion: lr is None, expected a number"),
        ({"weight_decay": [0.1]}, r"Lion: weight_decay is \[0.1\], expected a number"),
        ({"betas": 0.9}, "Lion: betas is 0.9, expected two numbers"),
        ({"betas": (0.9, "x")}, "Lion: betas is 'x', expected a number"),
        ({"seed": 1 << 63}, "Lion: seed is 9223372036854775808, expected an int64"),
    ],
)
def test_lion_names_what_it_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tfk.optim.Lion(parameters(torch.float32), **options)


def test_a_lion_resumes_bit_for_bit() -> None:
    params = parameters(torch.bfloat16)
    optimizer = tfk.optim.Lion(params, state_dtype=torch.uint8, master_weights=True)
    optimizer.step()
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = tfk.optim.Lion(others, state_dtype=torch.uint8, master_weights=True)
    again.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, others, strict=True):
        q.grad = p.grad.clone()
    # Both would write the tensors that the state_dicts share.
    again.state = {p: {n: x.clone() for n, x in s.items()} for p, s in again.state.items()}
    optimizer.step()
    again.step()
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_codes_round_trip() -> None:
    for signed in (True, False):
        codes = torch.arange(256, dtype=torch.uint8)
        if signed:
            codes[128] = 0  # no number has this one
        scales = torch.tensor([3.0])
        values = _states.decode(codes, scales, signed)
        halves = torch.full((256,), 1 << 15)
        again, scales_again = _states.encode(values, halves, signed)
        torch.testing.assert_close(scales_again, scales)
        torch.testing.assert_close(again, codes)


@pytest.mark.parametrize("cls", [tfk.optim.AdamW, tfk.optim.Lion])
def test_a_graph_of_the_old_weights_is_refused(cls: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    loss = weight.square().sum()
    loss.backward(retain_graph=True)
    cls([weight]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
