# SPDX-License-Identifier: MIT
"""The choice of sites by steps of the whole model; a CPU stands in for a GPU, whose host waits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.fuse import cost, whole
from transformer_kernels.fuse.site import Times
from transformer_kernels.testing.transformer import Transformer

WIDTH = 32


@pytest.fixture(autouse=True)
def _with_host(monkeypatch):
    """A norm saves the device's time and costs the host more, others the other way round."""
    monkeypatch.setattr(cost, "_shares", lambda *_: cost._SHARES)

    def measured(self, trial, rows):
        saves = self.pattern == "norm"
        times, host = ((10.0, 5.0), (2.0, 8.0)) if saves else ((10.0, 11.0), (6.0, 2.0))
        return {"training": times, "inference": times, "host": [host, host], "rows": 1}

    def gate(self, site, gate=cost.Prices.gate):
        self.pattern = site.pattern
        return gate(self, site)

    monkeypatch.setattr(cost.Prices, "_measured", measured)
    monkeypatch.setattr(cost.Prices, "gate", gate)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


@pytest.fixture
def args():
    return (torch.randn(2, 40, WIDTH),)


def _races(monkeypatch, fastest):
    """Steps are fastest with the choice of these patterns; the calls are returned."""
    calls = []

    def race(model, inputs, plan, prices, mode, choices):
        calls.append(mode.gate)
        return [
            1e3 if {site.pattern for site in chosen} == fastest[mode.gate] else 2e3
            for chosen in choices
        ]

    monkeypatch.setattr(whole, "_race", race)
    return calls


PATTERNS = ["norm", "activation"]


@pytest.mark.parametrize("fastest", [{"norm"}, {"activation"}, {"norm", "activation"}])
def test_the_fastest_choice_is_put_in(model, args, monkeypatch, fastest):
    _races(monkeypatch, {"training": fastest, "inference": fastest})
    plan = tfk.fuse(model, args, patterns=PATTERNS)
    assert {site.pattern for site in plan.sites} == fastest
    assert [step.times for step in plan.steps] == 2 * [Times(2e3, 1e3)]
    left = {"norm", "activation"} - fastest
    assert {site.pattern for site in plan.declined} == left
    assert {r.pattern for r in plan.refusals if "steps of the model" in r.reason} == left
    assert "a step of training: 2.0 ms stock, 1.0 ms fused" in str(plan)


def test_training_and_forward_passes_have_their_own_choice(model, args, monkeypatch):
    _races(monkeypatch, {"training": {"norm"}, "inference": {"activation"}})
    gates = {s.pattern: s.gate for s in tfk.plan(model, args, patterns=PATTERNS).sites}
    assert (gates["norm"].training, gates["norm"].inference) == (True, False)
    assert (gates["activation"].training, gates["activation"].inference) == (False, True)


def test_nothing_is_put_in_where_stock_steps_are_fastest(model, args, monkeypatch):
    _races(monkeypatch, {"training": set(), "inference": set()})
    plan = tfk.fuse(model, args, patterns=PATTERNS)
    assert not plan.sites
    assert [step.times for step in plan.steps] == 2 * [Times(1e3, 1e3)]
    assert type(model[0]) is nn.LayerNorm


def test_races_last_from_one_plan_to_the_next(model, args, monkeypatch):
    calls = _races(monkeypatch, {"training": {"norm"}, "inference": {"norm"}})
    first = tfk.plan(model, args, patterns=PATTERNS)
    assert calls == ["training", "inference"]
    assert tfk.plan(model, args, patterns=PATTERNS).to_json() == first.to_json()
    assert len(calls) == 2


def test_where_no_step_can_be_timed_the_host_counts_half(model, args, monkeypatch):
    monkeypatch.setattr(whole, "_race", lambda *_: [math.inf] * 9)
    plan = tfk.plan(model, args, patterns=PATTERNS)
    assert not plan.steps
    assert {site.pattern for site in plan.sites} == {"activation"}  # 16 us, ours 13
    assert [r.pattern for r in plan.refusals if "costs the host too much" in r.reason] == ["norm"]
    calls = _races(monkeypatch, {"training": {"norm"}, "inference": {"norm"}})
    assert tfk.plan(model, args, patterns=PATTERNS).steps  # what failed is timed again
    assert calls == ["training", "inference"]


def test_a_frozen_model_is_timed_without_gradients_alone(model, args, monkeypatch):
    calls = _races(monkeypatch, {"inference": {"norm"}})
    tfk.plan(model.requires_grad_(False), args, patterns=PATTERNS)
    assert calls == ["inference"]


def test_processes_that_run_one_model_choose_alike(model, args, monkeypatch):
    calls = _races(monkeypatch, {"training": {"norm"}, "inference": {"norm"}})
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    plan = tfk.plan(model, args, patterns=PATTERNS)
    assert not calls
    assert not plan.steps
    assert {site.pattern for site in plan.sites} == {"activation"}


def test_a_site_that_others_build_on_is_kept(monkeypatch):
    _races(monkeypatch, {"training": {"sum_norm"}, "inference": {"sum_norm"}})
    plan = tfk.fuse(Transformer(WIDTH), (torch.randn(2, 40, WIDTH),), patterns=["norm", "sum_norm"])
    sums = [site for site in plan.sites if site.pattern == "sum_norm"]
    norms = {site.path: site for site in plan.sites if site.pattern == "norm"}
    assert sums
    assert {path for site in sums for _, path in site.needs} == {*norms}  # not that of the start
    assert not any(s.gate.training or s.gate.inference for s in norms.values())


# ---- real steps ---------------------------------------------------------------------------------


def test_real_steps_leave_the_model_as_it_was(model, args):
    model.append(nn.BatchNorm1d(40)).append(nn.Dropout(0.5))
    model[3].eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = tfk.plan(model, args, patterns=PATTERNS)
    assert [step.what for step in plan.steps] == ["a step of training", "a forward pass"]
    assert all(us > 0 for step in plan.steps for us in step.times)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert [m.training for m in model] == [True, True, True, False, True]
    assert type(model[0]) is nn.LayerNorm


def test_a_model_that_cannot_take_a_step_is_fused_by_its_sites(model, args):
    class Once(nn.Module):
        """Runs with the few rows of the record alone, as where memory ends."""

        def forward(self, x):
            if len(x) > 2:
                raise torch.OutOfMemoryError
            return x

    plan = tfk.fuse(model.append(Once()), (torch.randn(8, 40, WIDTH),), patterns=PATTERNS)
    assert not plan.steps
    assert model(*args).shape == (2, 40, WIDTH)


def test_made_up_steps_have_a_usual_size(monkeypatch):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    sizes = []
    model.transformer.wte.register_forward_pre_hook(lambda _, args: sizes.append(args[0].shape))
    assert tfk.plan(model, patterns=["norm"]).steps
    assert set(sizes) == {(2, 16), (8, 16)}
