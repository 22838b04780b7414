# SPDX-License-Identifier: MIT
"""Blocks replayed as CUDA graphs: results, gradients, and what a program holds."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.fuse.blocks import blocks
from transformer_kernels.fuse.record import record
from transformer_kernels.fuse.situation import Arguments, Snapshot, UnservedError, call_with

from .replaying import (
    DEPTH,
    TOKENS,
    WARM,
    WIDTH,
    Block,
    Model,
    equal,
    inputs,
    made,
    replayed,
    replays,
    said,
    same,
    set_up,
    step,
    warm,
)

pytestmark = pytest.mark.filterwarnings("ignore:fuse:RuntimeWarning")


@pytest.fixture(autouse=True)
def _anew(monkeypatch, request):
    set_up(monkeypatch, request)


# ---- training -----------------------------------------------------------------------------------


def test_training_is_that_of_the_fused_model(device):
    fused, ours = made(device)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (fused, ours)]
    for n in range(2 * WARM):
        x = inputs(device)
        same(step(ours, x), step(fused, x))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=n % 2 == 0)
    assert replays(ours) == DEPTH
    assert not said()


def test_gradients_accumulate(device):
    fused, ours = made(device)
    for n in range(3 * WARM):
        x = inputs(device)
        same(step(ours, x, accumulate=n % 3), step(fused, x, accumulate=n % 3))


def test_gradients_of_an_earlier_step_stay(device):
    _, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    step(ours, x)
    held = [p.grad for p in ours.parameters()]
    before = [g.clone() for g in held]
    step(ours, inputs(device))
    equal(held, before)


def test_arguments_that_all_blocks_share(device):
    fused, ours = made(device)
    for _ in range(2 * WARM):
        x, mask = inputs(device), torch.rand(2, TOKENS, 1, device=device)
        x.requires_grad_()
        mask.requires_grad_()
        found = []
        for model in (ours, fused):
            x.grad = mask.grad = None
            found.append([*step(model, x, mask), x.grad, mask.grad])
        same(*found)
    assert replays(ours) == DEPTH


def test_frozen_and_shared_parameters(device):
    torch.manual_seed(5)
    model = Model().to(device)
    model.layers[0].requires_grad_(False)
    model.embed.requires_grad_(False)
    model.layers[1].fc1.weight.requires_grad_(False)
    model.layers[2].mix.weight = model.layers[1].out.weight
    fused, ours = replayed(model, inputs(device))
    for _ in range(2 * WARM):
        x = inputs(device)
        same(step(ours, x), step(fused, x))
    assert replays(ours) == DEPTH


def test_dropout_draws_anew_and_a_seed_repeats(device):
    _, ours = made(device, p=0.5)
    x = inputs(device)
    warm(ours, x)
    torch.manual_seed(7)
    first, second = step(ours, x), step(ours, x)
    torch.manual_seed(7)
    equal(step(ours, x), first)
    assert not torch.equal(first[0], second[0])


def test_the_backward_pass_drops_what_the_forward_pass_dropped(device):
    """A block that only drops: its gradient is 0 where its result is the input's multiple."""

    class Drops(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.drop, self.weight = nn.Dropout(p), nn.Parameter(torch.ones(WIDTH))

        def forward(self, x, mask=None):
            return self.drop(x * self.weight)

    torch.manual_seed(5)
    _, ours = made(device, 0.5, Drops)
    blocks_of = ours.layers
    for _ in range(2 * WARM):
        x = inputs(device).requires_grad_()
        y = blocks_of[0](x)
        y.sum().backward()
        assert torch.equal(x.grad != 0, y.detach() != 0)


@pytest.mark.cuda
def test_autocast():
    fused, ours = made("cuda")
    for _ in range(2 * WARM):
        x = inputs("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            same(step(ours, x), step(fused, x))
    same(step(ours, x), step(fused, x))
    assert replays(ours) == DEPTH


# ---- without gradients --------------------------------------------------------------------------


def test_inference(device):
    fused, ours = made(device)
    for model in (fused, ours):
        model.eval()
    for mode in (torch.no_grad, torch.inference_mode):
        for tokens in (TOKENS, TOKENS, TOKENS, TOKENS, 50, 50, 50, 50, TOKENS):
            x = inputs(device, tokens)
            with mode():
                same([ours(x)], [fused(x)])
    assert replays(ours) == 4 * DEPTH


# ---- results that are held ----------------------------------------------------------------------


def test_results_that_are_held_stay(device):
    fused, ours = made(device)
    for model in (fused, ours):
        model.eval()
    held, expected = [], []
    with torch.no_grad():
        for _ in range(3 * WARM):
            x = inputs(device)
            held += ours(x, hidden=True)[1]
            expected += [y.clone() for y in fused(x, hidden=True)[1]]
    same(held, expected)


def test_gradients_of_arguments_that_are_held_stay(device):
    fused, ours = made(device)
    held, expected = [], []
    for _ in range(3 * WARM):
        x = inputs(device).requires_grad_()
        for model, into in ((ours, held), (fused, expected)):
            states = model(x, hidden=True)[1]
            into += torch.autograd.grad(states[-1].square().sum(), states[:-1])
    same(held, expected)


def test_two_forward_passes_before_the_backward_pass(device):
    fused, ours = made(device)
    for _ in range(2 * WARM):
        x, other = inputs(device), inputs(device)
        found = []
        for model in (ours, fused):
            model.zero_grad()
            (model(x).square().sum() + model(other).sum()).backward()
            found.append([p.grad.clone() for p in model.parameters()])
        same(*found)
    assert "before the backward pass of the last call" in said()


def test_a_graph_that_is_retained_and_one_that_is_not(device):
    fused, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    found = []
    for model in (ours, fused):
        y = model(x).square().sum()
        parameters = list(model.parameters())
        twice = [torch.autograd.grad(y, parameters, retain_graph=keep) for keep in (True, False)]
        found.append([g for grads in twice for g in grads])
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, parameters)
    same(*found)


def test_a_result_that_is_written_to(device):
    """As without graphs: a saved tensor raises in the backward pass, another one is used as it
    is."""
    _, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    y, states = ours(x, hidden=True)
    states[1].detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.no_grad():
        ours.layers[0].mix.weight.mul_(1.0)
    y = ours(x)
    with torch.no_grad():
        ours.layers[0].mix.weight.mul_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_of_gradients(device):
    class Smooth(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

        def forward(self, x, mask=None):
            return x + self.inner(x)

    torch.manual_seed(5)
    model = Model(0.0, Smooth).to(device)
    args = (inputs(device),)
    _, ours = replayed(model, *args)
    for _ in range(2 * WARM):
        x = inputs(device).requires_grad_()
        found = []
        for each in (ours.layers, model.layers):
            y = x
            for layer in each:
                y = layer(y)
            (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(dx.square().sum(), list(each.parameters())))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def test_gradients_of_gradients_of_dropout_are_refused(device):
    _, ours = made(device, p=0.5)
    x = inputs(device).requires_grad_()
    warm(ours, x)
    with pytest.raises(RuntimeError, match="create_graph is True"):
        torch.autograd.grad(ours(x).sum(), x, create_graph=True)


# ---- the plan and its parts ---------------------------------------------------------------------


def test_the_plan_of_a_cpu_says_that_there_are_none():
    model = Model()
    plan = tfk.fuse(model, (inputs("cpu"),), measure=False, graphs=True)
    assert "graphs" not in plan.counts()
    assert "not fused: graphs at the model: the model is on cpu, graphs are of CUDA" in str(plan)


@pytest.mark.cuda
def test_the_plan_names_the_blocks():
    model = Model().cuda()
    plan = tfk.fuse(model, (inputs("cuda"),), measure=False, graphs=True)
    assert plan.counts()["graphs"] == DEPTH
    paths = [s["path"] for s in json.loads(plan.to_json())["sites"] if s["pattern"] == "graphs"]
    assert paths == [f"layers.{i}" for i in range(DEPTH)]
    assert tfk.fuse(model) is plan


def test_blocks_are_the_outermost_lists_of_one_class():
    class Nested(Block):
        def __init__(self, p):
            super().__init__(p)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(2))

        def forward(self, x, mask=None):
            return super().forward(sum((e(x) for e in self.experts), x), mask)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Model(0.0, Nested), Model()
            self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, WIDTH))

        def forward(self, x):
            return self.second(self.mlp(self.first(x)))

    model = Two()
    found = [
        [c.path for c in calls] for calls in blocks(model, record(model, (inputs("cpu"),), {}))
    ]
    assert found == [[f"{n}.layers.{i}" for i in range(DEPTH)] for n in ("first", "second")]


def test_the_form_of_arguments():
    x, y = torch.ones(2), torch.ones(2)

    def form(*args, **options):
        return Arguments(args, options, None).form

    assert form(x, (y, 1), a=None) == form(y, (x, 1), a=None)
    assert form(x, y) != form(x, x)
    assert len({form(x, v) for v in (1, True, 1.0, "1", None, 2.0, -0.0, 0.0)}) == 8
    assert form(x, [y]) != form(x, (y,))
    given = Arguments((x, [y, x]), {"a": (1.5, {"b": y})}, None)
    assert given.tensors[0] is x
    assert given.tensors[1] is y
    assert len(given.tensors) == 2
    z, w = torch.zeros(2), torch.zeros(3)
    args, options = call_with(given.form, [z, w])
    assert args[0] is z
    assert args[1][0] is w
    assert args[1][1] is z
    assert options == {"a": (1.5, {"b": w})}


def test_a_snapshot_refuses_what_autograd_would_not_find():
    block = Block()
    block.fc1.extra = torch.ones(2, requires_grad=True)
    with pytest.raises(UnservedError, match="neither parameter nor plain buffer"):
        Snapshot(block, list(block.modules())[1:])
