# SPDX-License-Identifier: MIT
"""Models whose blocks are replayed, for the tests.

On a CPU a stand-in takes the place of a graph: it runs the captured function again, and writes to
the memory of the captured results, as a graph does.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.fuse import graphs, mixin
from transformer_kernels.fuse.blocks import blocks
from transformer_kernels.fuse.patterns import sum_norm
from transformer_kernels.fuse.plan import put_in
from transformer_kernels.fuse.record import record
from transformer_kernels.fuse.shared import Graphs

WIDTH, TOKENS, DEPTH = 32, 40, 3
WARM = 3  # calls after which a block replays


class StandIn:
    def __init__(self, *_):
        pass

    def record(self, run):
        self._run, self._grad = run, torch.is_grad_enabled()
        found = run()
        self._memory = [None if x is None else x.detach() for x in found]
        return found

    def replay(self):
        with torch.set_grad_enabled(self._grad):
            found = self._run()
        with torch.no_grad():
            for memory, x in zip(self._memory, found, strict=True):
                if memory is not None:
                    memory.copy_(x)

    def lend(self, x):
        return x.detach()


class Block(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)
        self.drop, self.scale = nn.Dropout(p), 1.0

    def forward(self, x, mask=None, flag=False):
        y = self.mix(self.norm(x))
        y = y if mask is None else y * mask
        x = x + self.out(y) * self.scale
        x = x + self.drop(self.fc2(self.act(self.fc1(self.norm2(x)))))
        return x * 2 if flag else x


class Model(nn.Module):
    def __init__(self, p=0.0, block=Block, depth=DEPTH):
        super().__init__()
        self.embed, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList()
        self.layers.extend(block(p) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x, mask=None, hidden=False, **options):
        x = self.embed(x)
        states = [x]
        for layer in self.layers:
            x = layer(x, mask=mask, **options)
            states.append(x)
        y = self.head(self.norm(x))
        return (y, states) if hidden else y


def set_up(monkeypatch, request):
    """Warnings are given anew; on a CPU the stand-in is captured."""
    monkeypatch.setattr(mixin, "_said", set())
    device = request.node.callspec.params.get("device") if hasattr(request.node, "callspec") else ""
    if device == "cpu":
        monkeypatch.setattr(Graphs, "tape", StandIn)
        monkeypatch.setattr(sum_norm, "_MOST_MISSES", 1000)  # a replay would count them again


def replayed(model, *args):
    """A fused copy of the model, and one whose blocks are replayed."""
    fused, ours = copy.deepcopy(model), copy.deepcopy(model)
    trace = record(copy.deepcopy(model), args, {})
    for each in (fused, ours):
        tfk.fuse(each, args, measure=False)
    shared = Graphs(next(model.parameters()).device)
    put_in(
        graphs.site(call.path, ours.get_submodule(call.path), shared)
        for calls in blocks(model, trace)
        for call in calls
    )
    return fused, ours


def made(device, p=0.0, block=Block, **options):
    torch.manual_seed(5)
    model = Model(p, block, **options).to(device)
    return replayed(model, inputs(device))


def inputs(device, tokens=TOKENS, batch=2):
    return torch.randn(batch, tokens, WIDTH, device=device)


def step(model, x, *args, accumulate=False, **options):
    """The result, and gradients of all parameters."""
    if not accumulate:
        model.zero_grad()
    y = model(x, *args, **options)
    (y * torch.linspace(0.5, 1.5, y.numel(), device=y.device).view(y.shape)).sum().backward()
    return [
        y.detach().clone(),
        *(None if p.grad is None else p.grad.clone() for p in model.parameters()),
    ]


def warm(model, x, *args, times=WARM, **options):
    for _ in range(times):
        step(model, x, *args, **options)


def same(ours, fused):
    """Equal but for the order in which autograd adds gradients."""
    for a, b in zip(ours, fused, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            most = 1e-5 if a.dtype is not torch.bfloat16 else 1e-2
            torch.testing.assert_close(a, b, rtol=most, atol=most * float(b.abs().max()))


def equal(ours, others):
    assert all(map(torch.equal, ours, others))


def replays(model):
    """How many calls of the model's blocks have graphs."""
    return sum(
        len(state.calls)
        for layer in model.layers
        for state in layer.__dict__["_tfk_graphs"]._states
    )


def said():
    return " ".join(reason for _, reason in mixin._said)
