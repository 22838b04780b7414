# SPDX-License-Identifier: MIT
"""Large tables of embeddings: PyTorch's lookup, and our gradient in training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels import functional
from transformer_kernels.fuse.patterns import embedding

ROWS, WIDTH = 50, 16


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    monkeypatch.setattr(embedding, "_LEAST_BYTES", ROWS * WIDTH * 4)


@pytest.fixture
def calls(monkeypatch):
    found, ours = [], functional.embedding

    def counted(*args, **options):
        found.append(options)
        return ours(*args, **options)

    monkeypatch.setattr(functional, "embedding", counted)
    return found


class Model(nn.Module):
    """A table whose rows are the classes of the head, too."""

    def __init__(self, rows=ROWS, **options):
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH, **options)

    def forward(self, ids):
        return self.table(ids) @ self.table.weight.t()


def fused(model):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, torch.arange(12).view(2, 6), measure=False)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}])
def test_gradients_are_those_of_pytorch(options, calls):
    model = Model(**options)
    ours, plan = fused(model)
    assert plan.counts() == {"embedding": 1}
    ids = torch.tensor([[3, 1, 4, 1, 5, 49], [2, 3, 0, 7, 1, 3]])
    calls.clear()
    for one in (model, ours):
        one(ids).square().mean().backward()
    assert len(calls) == 1
    torch.testing.assert_close(ours.table.weight.grad, model.table.weight.grad)
    with torch.no_grad():
        assert torch.equal(ours(ids), model(ids))
    assert len(calls) == 1  # without gradients there is nothing to gain


def test_small_tables_and_sparse_gradients_are_left():
    assert fused(Model(rows=ROWS - 1))[1].counts() == {}
    for options in ({"sparse": True}, {"max_norm": 1.0}):
        _, plan = fused(Model(**options))
        assert plan.counts() == {}
        assert [refusal.pattern for refusal in plan.refusals] == ["embedding"]


def test_another_option_later_is_respected(calls):
    ours, _ = fused(Model())
    calls.clear()
    ours.table.sparse = True
    (3 * ours.table(torch.tensor([3, 4]))).sum().backward()
    assert ours.table.weight.grad.is_sparse
    assert calls == []


def test_the_plan_times_it_in_training():
    plan = tfk.plan(Model(), torch.arange(12).view(2, 6))
    (site,) = [*plan.sites, *plan.declined]
    assert site.training is not None
    assert site.inference is not None


def test_random_numbers_are_as_before():
    model = Model()
    state = torch.get_rng_state()
    fused(model)
    assert torch.equal(torch.get_rng_state(), state)
