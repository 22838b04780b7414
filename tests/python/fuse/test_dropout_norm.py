# SPDX-License-Identifier: MIT
"""Dropout that the sum behind it computes along with its norm."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.fuse.patterns import dropout_norm
from transformer_kernels.fuse.patterns.dropout_norm import Dropped

from . import replaying
from .counting import counted
from .zoo.compare import assert_as_exact, assert_close, assert_equal, train
from .zoo.families import BY_NAME

WIDTH, ROWS, P = 32, 40, 0.3


class Output(nn.Module):
    """The end of a branch as BERT writes it."""

    reads = staticmethod(lambda y: y)

    def __init__(self, norm, p=P, inplace=False):
        super().__init__()
        self.dense, self.dropout, self.norm = (
            nn.Linear(WIDTH, WIDTH), nn.Dropout(p, inplace), norm(WIDTH, eps=1e-5)
        )  # fmt: skip
        nn.init.normal_(self.norm.weight)

    def forward(self, x, residual):
        y = self.reads(self.dropout(self.dense(x)))
        return self.norm(y + residual)


class Model(nn.Module):
    def __init__(self, norm=nn.LayerNorm, **options):
        super().__init__()
        self.first, self.second = Output(norm, **options), Output(norm, **options)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.first(x, x)
        return self.head(self.second(x, x))


@pytest.fixture
def sums(monkeypatch):
    """The sums that took a dropout along."""
    return counted(monkeypatch, dropout_norm, "sum_of")


def fused(model, x, **options):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, (x,), measure=False, **options)


def pair(model, x, **options):
    """Fused with the pattern and without it: both draw the same masks."""
    others = ["norm", "dropout", "sum_norm", "linear"]
    ours, plan = fused(model, x, patterns=[*others, "dropout_norm"], **options)
    return ours, fused(model, x, patterns=others, **options)[0], plan


def results(model, x, seed=3):
    torch.manual_seed(seed)
    return train(model, {"x": x})


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_the_sum_drops_and_norms_in_one_pass(norm, device, sums):
    model, x = Model(norm).to(device).train(), torch.randn(2, ROWS, WIDTH, device=device)
    ours, apart, plan = pair(model, x)
    assert plan.counts()["dropout_norm"] == 2
    assert [s.launches for s in plan.sites if s.pattern == "dropout_norm"] == [(2, 1)] * 2
    exact = results(copy.deepcopy(apart).double(), x.double())
    found, others = results(ours, x), results(apart, x)
    assert len(sums) == 2
    assert_as_exact(found, others, exact)
    assert not torch.equal(results(ours, x, seed=4)["y"], found["y"])
    assert_equal(results(ours, x), found)
    sums.clear()
    ours.eval()
    assert torch.equal(ours(x), apart.eval()(x))
    assert not sums
    tfk.unfuse(ours)
    assert torch.equal(ours(x), model.eval()(x))


@pytest.mark.parametrize("residual_in_fp32", [False, True])
def test_under_autocast(residual_in_fp32, device, sums):
    model, x = Model().to(device).train(), torch.randn(2, ROWS, WIDTH, device=device)
    with torch.autocast(device, torch.bfloat16):
        ours, apart, _ = pair(model, x, residual_in_fp32=residual_in_fp32)
        exact = results(copy.deepcopy(apart).double(), x.double())
        found, others = results(ours, x), results(apart, x)
    assert len(sums) == 2
    assert_as_exact(found, others, exact, torch.bfloat16)


def test_another_reader_gets_what_the_dropout_alone_gives(sums):
    model, x = Model().train(), torch.randn(2, ROWS, WIDTH)
    ours, apart, _ = pair(model, x)
    seen = {ours: [], apart: []}
    for m in (ours, apart):
        m.first.reads = lambda y, m=m: seen[m].append(y * 1) or y
        m.second.reads = lambda y: y * 2
    found, others = results(ours, x), results(apart, x)
    assert type(seen[ours][0]) is torch.Tensor
    assert torch.equal(seen[ours][0], seen[apart][0])
    assert_close(found, others)
    assert len(sums) == 0  # both were computed before their sums


def test_both_terms_may_wait(sums):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Dropout(P), nn.Dropout(P)
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            return self.norm(self.a(x * 1) + x) + self.norm(self.b(x * 2) + self.a(x * 1))

    x = torch.randn(2, ROWS, WIDTH)
    ours, apart, _ = pair(Twice().train(), x)
    assert_close(results(ours, x), results(apart, x))


@pytest.mark.filterwarnings("ignore:fuse")
@pytest.mark.parametrize("place", ["dropout", "norm", "dense"])
def test_hooks_see_true_values(place, sums):
    model, x = Model().train(), torch.randn(2, ROWS, WIDTH)
    ours, apart, _ = pair(model, x)
    seen = []
    for m in (ours, apart):
        getattr(m.first, place).register_forward_hook(lambda _m, _args, y: seen.append(y))
    assert_close(results(ours, x), results(apart, x))
    assert type(seen[0]) is not Dropped
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-4, atol=1e-5)
    assert len(sums) == (2 if place == "dense" else 1)


def test_nothing_waits_outside_of_the_forward_that_adds(sums):
    model, x = Model().train(), torch.randn(2, ROWS, WIDTH)
    ours, _, _ = pair(model, x)
    assert type(ours.first.dropout(x)) is not Dropped
    ours.first.reads = staticmethod(lambda _y: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours(x)
    assert type(ours.first.dropout(x)) is not Dropped
    with torch.no_grad():
        sums.clear()
        ours.first.reads = staticmethod(lambda y: y)
        ours(x)
    assert len(sums) == 2  # training mode drops without gradients, too


@pytest.mark.parametrize(("p", "waits"), [(0.0, 0), (1e-9, 0), (0.5, 2), (1.0, 0)])
def test_a_probability_that_changes(p, waits, sums):
    model, x = Model().train(), torch.randn(2, ROWS, WIDTH)
    ours, apart, _ = pair(model, x)
    for m in (ours, apart):
        m.first.dropout.p = m.second.dropout.p = p
    assert_close(results(ours, x), results(apart, x))
    assert len(sums) == waits


def test_a_dropout_in_place_or_of_two_sums_is_left():
    x = torch.randn(2, ROWS, WIDTH)
    _, plan = fused(Model(inplace=True), x)
    assert "dropout_norm" not in plan.counts()
    plan = tfk.fuse(BY_NAME["vit"].build(0.1), BY_NAME["vit"].inputs(), measure=False)
    assert plan.counts()["sum_norm"]
    assert "dropout_norm" not in plan.counts()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_waits_for_its_own(copied, sums):
    model, x = Model().train(), torch.randn(2, ROWS, WIDTH)
    ours, _ = fused(model, x, patterns=["norm", "dropout", "sum_norm", "dropout_norm"])
    other = copied(ours)
    assert_equal(results(other, x), results(ours, x))
    nn.init.zeros_(ours.second.norm.weight)
    assert not torch.equal(results(other, x)["y"], results(ours, x)["y"])
    assert len(sums) == 8


@pytest.mark.parametrize(("name", "sites", "each"), [
    ("bert", 4, 4), ("roberta", 4, 4), ("t5", 10, 10), ("phi3", 2, 4), ("nn encoder", 2, 4),
])  # fmt: skip
def test_models_that_nobody_here_wrote(name, sites, each, sums):
    family = BY_NAME[name]
    stock, inputs = family.build(0.1).train(), family.inputs()
    ours, apart = copy.deepcopy(stock), copy.deepcopy(stock)
    plan = tfk.fuse(ours, inputs, measure=False)
    assert plan.counts()["dropout_norm"] == sites
    without = [p for p in {*plan.counts()} if p != "dropout_norm"]
    tfk.fuse(apart, inputs, measure=False, patterns=without)
    found = []
    for model in (ours, apart):
        torch.manual_seed(3)
        found.append(train(model, inputs))
    assert len(sums) == each
    assert_close(*found)


def test_what_is_timed_does_the_same_work(monkeypatch):
    model, x = Model().train(), torch.randn(2, ROWS, WIDTH)
    trials = []

    def keep(site, _prices):
        if site.pattern == "dropout_norm":
            trials.append(site.trial(ROWS))
        return "does not pay" if site.pattern == "dropout_norm" else None

    monkeypatch.setattr(importlib.import_module("transformer_kernels.fuse.fuser"), "_why_not", keep)
    _, plan = fused(model, x)
    assert [r.reason for r in plan.refusals if r.pattern == "dropout_norm"] == ["does not pay"] * 2
    for calls in trials:
        found = []
        for run in (calls.ours, calls.stock):
            torch.manual_seed(3)
            found.append(run(*calls.tensors))
        torch.testing.assert_close(*found)


class PostNorm(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.a, self.b = (Output(nn.LayerNorm, p) for _ in range(2))

    def forward(self, x, mask=None):
        return self.b(self.a(x, x).tanh(), x)


def test_replays_draw_new_masks_and_a_seed_repeats_them(device, monkeypatch, request, sums):
    replaying.set_up(monkeypatch, request)
    fused_model, ours = replaying.made(device, P, PostNorm)
    sums.clear()
    x = replaying.inputs(device)
    replaying.warm(ours, x)
    assert replaying.replays(ours) == replaying.DEPTH
    assert sums
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(replaying.step(ours, x))
    replaying.equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[2][0])
    if device == "cpu":  # a graph's seeds are drawn by the device
        torch.manual_seed(1)
        replaying.same(found[0], replaying.step(fused_model, x))


def test_what_reads_memory_fails_loudly():
    late = Dropped.of(torch.randn(2, 3, WIDTH), P, torch.tensor([1, 2]))
    assert late.sum().shape == ()
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(RuntimeError, match="dropout_norm"):
        torch.ops.aten.mul(late, 2)
