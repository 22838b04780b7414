# SPDX-License-Identifier: MIT
"""Attention that a function of a model writes out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse.patterns.eager_attention import _as_attention

WIDTH, HEADS, KV_HEADS, LENGTH = 32, 4, 2, 40
DIM = WIDTH // HEADS


def scores_of(module, query, key, scaling, softcap=None):
    key = key.repeat_interleave(module.num_key_value_groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0,
                            softcap=None, **kwargs):  # fmt: skip
    key = key.repeat_interleave(module.num_key_value_groups, 1)
    value = value.repeat_interleave(module.num_key_value_groups, 1)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        weights = softcap * torch.tanh(weights / softcap)
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = F.dropout(weights, dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    num_key_value_groups = HEADS // KV_HEADS

    def __init__(self, softcap=None):
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * KV_HEADS * DIM)
        self.softcap = softcap

    def forward(self, x, mask=None, **options):
        q, k, v = (y.unflatten(-1, (-1, DIM)).transpose(1, 2)
                   for y in (self.q(x), *self.kv(x).chunk(2, -1)))  # fmt: skip
        y, weights = eager_attention_forward(
            self, q, k, v, mask, dropout=0.0, scaling=0.3, softcap=self.softcap, **options
        )
        return self.o(y.flatten(2)), weights


class Block(nn.Module):
    def __init__(self, softcap=None, reads=False):
        super().__init__()
        self.attention, self.reads = Attention(softcap), reads

    def forward(self, x, mask=None):
        y, weights = self.attention(x, mask)
        return x + y * weights.mean() if self.reads else x + y


@pytest.fixture
def x():
    return torch.randn(2, LENGTH, WIDTH)


@pytest.fixture
def mask():
    rows = torch.full((2, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
    rows[1, ..., :9] = torch.finfo(torch.float32).min  # padding on the left: rows without a key
    return rows


def fused(model, x):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, (x,), measure=False, patterns=["eager_attention"])


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_results_and_gradients_are_those_of_the_function(x, mask, softcap, masked):
    model = Block(softcap)
    ours, plan = fused(model, x)
    assert plan.counts() == {"eager_attention": 1}
    given = (x, mask) if masked else (x,)
    results = []
    for m in (ours, model):
        y = m(*given)
        (y**2).sum().backward()
        results.append([y, *(p.grad for p in m.parameters())])
    assert ours.attention(*given)[1] is None
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.detach().abs().max()))
    tfk.unfuse(ours)
    assert torch.equal(ours(*given), model(*given))


@pytest.mark.filterwarnings("ignore:fuse")
def test_whoever_may_want_the_weights_gets_them(x):
    model = Block()
    ours, _ = fused(model, x)
    _, wanted = model.attention(x)
    assert torch.equal(ours.attention(x, output_attentions=True)[1], wanted)
    seen = []
    ours.attention.register_forward_hook(lambda _m, _args, result: seen.append(result[1]))
    ours(x)
    assert torch.equal(seen[0], wanted)


def test_weights_that_the_model_reads_are_refused(x):
    _, plan = fused(Block(reads=True), x)
    assert [r.reason for r in plan.refusals] == ["the attention weights are read"]


@pytest.mark.filterwarnings("ignore:fuse")
def test_a_call_that_is_not_as_it_was_tried_is_the_functions(x, mask):
    model = Block()
    ours, _ = fused(model, x)
    for given in (mask > -1, mask.squeeze(1)[0], mask.double()):  # is added as 0 and 1; is wider
        torch.testing.assert_close(ours(x, given), model(x, given), check_dtype=True)


def no_softmax(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    return scores_of(module, query, key, scaling).sigmoid(), None


def reads_more(*given, **kwargs):
    return eager_attention_forward(*given, **{"scaling": 1.0, **kwargs})


def knows_a_sink(module, query, key, value, attention_mask, scaling, dropout=0.0, sink=None):
    return eager_attention_forward(module, query, key, value, attention_mask, scaling)


@pytest.mark.parametrize("function", [no_softmax, reads_more, knows_a_sink])
def test_another_function_is_not_taken_for_attention(function):
    assert _as_attention(eager_attention_forward).caps
    assert _as_attention(function) is None
