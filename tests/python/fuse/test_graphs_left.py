# SPDX-License-Identifier: MIT
"""Blocks replayed as CUDA graphs: what makes a call run without one."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transformer_kernels.fuse import graphs
from transformer_kernels.fuse.plan import take_out

from .replaying import (
    DEPTH,
    TOKENS,
    WARM,
    WIDTH,
    Block,
    Model,
    inputs,
    made,
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


# ---- what changes -------------------------------------------------------------------------------


def _scale(model):
    model.layers[1].scale = 0.5


def _dropout(model):
    model.layers[0].drop.p = 1.0


def _other_memory(model):
    weight = model.layers[1].fc1.weight
    weight.data = weight.data * 2


def _other_view(model):
    weight = model.layers[1].mix.weight
    weight.data = weight.data.t()


def _other_parameter(model):
    model.layers[2].out.weight = nn.Parameter(model.layers[2].out.weight.detach() * 3)


def _other_module(model):
    old = model.layers[0].mix
    model.layers[0].mix = nn.Sequential(old, nn.Tanh())


def _frozen(model):
    model.layers[0].norm2.weight.requires_grad_(False)


def _hook(model):
    model.layers[1].act.register_forward_hook(lambda *called: called[2] * 2)


def _forward(model):
    fc2 = model.layers[1].fc2
    fc2.forward = lambda x: 2 * F.linear(x, fc2.weight, fc2.bias)


def _evaluation(model):
    model.eval()


def _in_place(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)


def _double(model):
    model.double()


CHANGES = (
    _scale, _dropout, _other_memory, _other_view, _other_parameter, _other_module, _frozen, _hook,
    _forward, _evaluation, _in_place, _double,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__[1:])
def test_what_a_program_changes_counts(change, device):
    fused, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    for model in (fused, ours):
        change(model)
    for _ in range(WARM + 1):
        x = inputs(device).to(next(fused.parameters()).dtype)
        same(step(ours, x), step(fused, x))


def test_arguments_of_other_values_shapes_and_strides(device):
    fused, ours = made(device)
    mask = torch.rand(2, TOKENS, 1, device=device)
    calls = [
        ((inputs(device),), {}), ((inputs(device), mask), {}), ((inputs(device, 33),), {}),
        ((inputs(device),), {"flag": True}), ((inputs(device),), {"flag": 1}),
    ]  # fmt: skip
    for _ in range(WARM + 2):
        for args, options in calls:
            same(step(ours, *args, **options), step(fused, *args, **options))
    assert replays(ours) == len(calls) * DEPTH


def test_arguments_of_other_strides(device):
    fused, ours = made(device)
    for _ in range(WARM + 2):
        for x in (inputs(device), torch.randn(TOKENS, 2, WIDTH, device=device).transpose(0, 1)):
            same(step(ours.layers[0], x), step(fused.layers[0], x))
    assert replays(ours) == 2


def test_no_more_graphs_than_the_limit(device, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST_GRAPHS", 2)
    fused, ours = made(device)
    for tokens in (33, 34, 35):
        for _ in range(WARM + 1):
            x = inputs(device, tokens)
            same(step(ours, x), step(fused, x))
    assert replays(ours) == 2 * DEPTH
    assert "it has 2 graphs" in said()


# ---- what is left to the fused code -------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant, device):
    _, ours = made(device, p=0.3)
    x = inputs(device)
    warm(ours, x)
    found = []
    for checkpointed in (True, False):
        torch.manual_seed(3)
        y = ours.embed(x)
        for layer in ours.layers:
            if checkpointed:
                y = checkpoint(layer, y, use_reentrant=reentrant)
            else:
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                    y = layer(y)
        ours.zero_grad()
        y.square().sum().backward()
        found.append([p.grad.clone() for p in ours.layers.parameters()])
    same(*found)
    assert "activation checkpointing" in said()


def test_torch_func_and_modes(device):
    fused, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    found = [
        torch.func.grad(lambda x, m=m: m(x).square().sum())(x) for m in (ours, fused)
    ]  # fmt: skip
    same([found[0]], [found[1]])
    assert "a transform or a mode" in said()


def test_an_argument_that_is_no_tensor(device):
    class Keeps(Block):
        def forward(self, x, mask=None, cache=None):
            if cache is not None:
                cache.kept.append(x.detach().clone())
            return super().forward(x, mask)

    class Cache:
        def __init__(self):
            self.kept = []

    fused, ours = made(device, 0.0, Keeps)
    for _ in range(2 * WARM):
        x, caches = inputs(device), (Cache(), Cache())
        same(step(ours, x, cache=caches[0]), step(fused, x, cache=caches[1]))
        same(caches[0].kept, caches[1].kept)
        assert len(caches[0].kept) == DEPTH
    assert "called with a Cache" in said()


class WritesBuffer(Block):
    def __init__(self, p):
        super().__init__(p)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, mask=None):
        self.count += 1
        if x.is_cuda:  # what does not wait for this stream reads too early
            torch.cuda._sleep(10_000_000)
        return super().forward(x, mask)


class WritesAttribute(Block):
    def forward(self, x, mask=None):
        self.last = x.detach()
        return super().forward(x, mask)


class WritesArgument(Block):
    def forward(self, x, mask=None):
        return super().forward(x.mul_(2) if not x.requires_grad else x * 2, mask)


class ReturnsView(Block):
    def forward(self, x, mask=None):
        return super().forward(x, mask) if self.scale == 2 else x.view(x.shape)


class DrawsOnHost(Block):
    def forward(self, x, mask=None):
        import random

        return super().forward(x, mask) * (1 + int(random.random()))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (WritesBuffer, "writes to its arguments or buffers"),
        (WritesAttribute, "attributes"),
        (WritesArgument, "writes to its arguments or buffers"),
        (ReturnsView, "returns a view"),
        (DrawsOnHost, "random numbers on the host"),
    ],
)
def test_blocks_that_no_graph_holds(block, reason, device):
    fused, ours = made(device, 0.0, block)
    for model in (fused, ours):
        model.eval()
    with torch.no_grad():
        for _ in range(2 * WARM):
            x = inputs(device)
            same([ours(x.clone())], [fused(x.clone())])
    if block is WritesBuffer:
        assert ours.layers[0].count == fused.layers[0].count
    assert reason in said()


@pytest.mark.cuda
def test_a_block_that_waits_for_the_device():
    class Waits(Block):
        def forward(self, x, mask=None):
            return super().forward(x, mask) * (2 if x.sum().item() > 0 else 1)

    fused, ours = made("cuda", 0.0, Waits)
    for _ in range(2 * WARM):
        x = inputs("cuda")
        same(step(ours, x), step(fused, x))
    assert "cannot be captured" in said()
    assert (F.dropout(torch.ones(1024, device="cuda")) == 0).any()  # random numbers are drawn yet


@pytest.mark.cuda
def test_another_stream():
    fused, ours = made("cuda")
    x = inputs("cuda")
    warm(ours, x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        same(step(ours, x), step(fused, x))
    torch.cuda.current_stream().wait_stream(side)
    assert "another thread or stream" in said()


@pytest.mark.cuda
def test_somebody_elses_graph_takes_the_block_in():
    _, ours = made("cuda")
    ours.eval()
    x = inputs("cuda")
    with torch.no_grad():
        for _ in range(WARM + 1):
            expected = ours(x).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ours(x)
        graph.replay()
    assert torch.equal(y, expected)


# ---- the model as an object ---------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_capture_their_own(copied, device):
    fused, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    other = copied(ours)
    assert replays(other) == 0
    shared = {id(layer._tfk_graphs.graphs) for layer in other.layers}
    assert len(shared) == 1
    assert shared != {id(layer._tfk_graphs.graphs) for layer in ours.layers}
    for _ in range(WARM + 1):
        same(step(other, x), step(fused, x))
    assert replays(other) == DEPTH


def test_graphs_are_taken_out(device):
    _, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    stock = Model().to(device)
    stock.load_state_dict(ours.state_dict())
    take_out(ours.modules())
    same(step(ours, x), step(stock, x))
    assert not any("_tfk" in name for layer in ours.layers for name in vars(layer))


def test_a_call_that_is_not_replayed_once_captures_no_other_graphs(device):
    fused, ours = made(device)
    x = inputs(device)
    warm(ours, x)
    assert replays(ours) == DEPTH
    hook = ours.layers[0].register_forward_hook(lambda *_: None)
    same(step(ours, x), step(fused, x))  # the blocks behind it get other memory
    hook.remove()
    same(step(ours, x), step(fused, x))
    assert replays(ours) == DEPTH
