# SPDX-License-Identifier: MIT
"""Losses of linear heads without their logits: masked language models, and others that call cross
entropy in their forward."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse.patterns import _logits
from transformer_kernels.fuse.patterns._logits import Logits, NoLogits

from .counting import counted
from .zoo.compare import GRADIENT, assert_as_exact, assert_close, reference, train
from .zoo.families import FAMILIES

WORDS, WIDTH, ROWS = 53, 32, 40
MASKED = [family for family in FAMILIES if family.kind == "masked"]
TRANSLATING = [family for family in FAMILIES if family.kind == "translation"]


class Model(nn.Module):
    """Calls the loss as ``lossy`` says."""

    def __init__(self, lossy, words=WORDS, bias=True):
        super().__init__()
        self.transform = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, words, bias=bias)
        self.lossy = lossy

    def forward(self, x, targets=None):
        logits = self.head(self.transform(x).tanh())
        return (logits,) if targets is None else (logits, self.lossy(logits, targets))


LOSSES = {
    "function": lambda y, t: F.cross_entropy(y.view(-1, y.size(-1)), t.view(-1)),
    "float32": lambda y, t: F.cross_entropy(y.float().reshape(-1, WORDS), t.flatten()),
    "module": lambda y, t: nn.CrossEntropyLoss(label_smoothing=0.1)(y.flatten(0, 1), t.flatten()),
    "ours": lambda y, t: tfk.functional.cross_entropy(y.flatten(0, 1), t.flatten(), z_loss=0.1),
    "sum": lambda y, t: F.cross_entropy(y.view(-1, WORDS), t.view(-1), ignore_index=3,
                                        reduction="sum"),
    "rows": lambda y, t: F.cross_entropy(y.view(-1, WORDS), t.view(-1), reduction="none").mean(),
    "weighted": lambda y, t: F.cross_entropy(y.view(-1, WORDS), t.view(-1),
                                             torch.linspace(1, 2, WORDS)),
}  # fmt: skip
# Losses that take the logits in another way: these are computed.
WHOLE = {
    "classes first": lambda y, t: F.cross_entropy(y.transpose(1, 2), t),
    "scaled": lambda y, t: F.cross_entropy((y / 2).flatten(0, 1), t.flatten()),
    "probabilities": lambda y, t: F.cross_entropy(y.flatten(0, 1), F.one_hot(t.flatten(), WORDS)
                                                  .float()),
}  # fmt: skip


@pytest.fixture
def batch():
    return torch.randn(2, ROWS, WIDTH), torch.randint(WORDS, (2, ROWS))


@pytest.fixture
def calls(monkeypatch):
    return counted(monkeypatch, _logits.functional, "linear_cross_entropy")


def fused(model, inputs, **options):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, inputs, measure=False, skip_logits=True, **options)


def results(model, x, targets):
    x = x.clone().requires_grad_()
    model.zero_grad()
    loss = model(x, targets)[1]
    (3 * loss).backward()
    grads = {GRADIENT + n: p.grad.clone() for n, p in model.named_parameters()}
    return {"loss": loss, GRADIENT + "x": x.grad, **grads}


def without_logits(run):
    """``run``, whose results have no logits, as those of the fused model."""
    return lambda *given: {n: x for n, x in run(*given).items() if n != "logits"}


# ---- models of Hugging Face ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "lowered"),
    [
        *((f, lowered) for f in MASKED for lowered in (False, True)),
        *((f, False) for f in TRANSLATING),
    ],
    ids=str,
)
def test_loss_and_gradients_are_stocks(family, lowered, calls):
    stock, inputs = family.build().train(), family.inputs()
    assert bool((inputs["labels"] == -100).any())

    def run(model, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
            return without_logits(train)(model, inputs)

    with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
        ours, plan = fused(stock, inputs)
    assert plan.counts()["skip_logits"] == 2
    calls.clear()
    found = run(ours, inputs)
    assert calls
    exact = reference(stock, without_logits(train), inputs)
    assert_as_exact(found, run(stock, inputs), exact, torch.bfloat16 if lowered else None)


@pytest.mark.parametrize("family", MASKED, ids=str)
def test_logits_of_a_masked_language_model(family):
    stock, inputs = family.build().train(), family.inputs()
    ours, _ = fused(stock, inputs)
    assert isinstance(ours(**inputs).logits, NoLogits)
    assert isinstance(ours(**inputs, return_dict=False)[1], NoLogits)
    ignored = {**inputs, "labels": torch.full_like(inputs["labels"], -100)}
    assert math.isnan(ours(**ignored).loss)
    assert math.isnan(stock(**ignored).loss)
    alone = {"input_ids": inputs["input_ids"]}
    for options in (alone, inputs):
        ours.train(options is alone)  # without labels, and in evaluation
        stock.train(options is alone)
        torch.testing.assert_close(ours(**options).logits, stock(**options).logits)
    tfk.unfuse(ours)
    assert type(ours) is type(stock)
    assert torch.equal(ours(**inputs).loss, stock(**inputs).loss)


@pytest.mark.filterwarnings("ignore:fuse")
@pytest.mark.parametrize("family", MASKED, ids=str)
@pytest.mark.parametrize("change", ["hook", "adapter", "outer hook"])
def test_a_changed_head_is_the_users(family, change):
    stock, inputs = family.build().train(), family.inputs()
    ours, _ = fused(stock, inputs)
    for model in (ours, stock):
        head = model.get_output_embeddings()
        torch.manual_seed(3)
        if change == "adapter":
            model.set_output_embeddings(Adapted(head))
        else:
            outer = list(model.children())[-1]
            place = head if change == "hook" else outer
            place.register_forward_hook(lambda _m, _args, y: y * 2)
    assert_close(train(ours, inputs), train(stock, inputs))


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.bias = layer, layer.bias
        self.down = nn.Linear(layer.in_features, 4)
        self.up = nn.Linear(4, layer.out_features)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


# ---- other models -------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy_takes_the_rows_of_a_head(name, bias, batch, calls):
    model = Model(LOSSES[name], bias=bias)
    ours, plan = fused(model, batch)
    assert plan.counts()["skip_logits"] == 2
    calls.clear()
    assert_close(results(ours, *batch), results(model, *batch))
    assert len(calls) == 1
    assert isinstance(ours(*batch)[0], NoLogits)
    assert torch.equal(ours(batch[0])[0], model(batch[0])[0])


def test_a_result_with_names_keeps_its_class(batch):
    class Named(NamedTuple):
        logits: Any
        loss: Any = None

    class Naming(Model):
        def forward(self, *given):
            return Named(*super().forward(*given))

    ours, _ = fused(Naming(LOSSES["function"]), batch)
    found = ours(*batch)
    assert type(found) is Named
    assert isinstance(found.logits, NoLogits)


@pytest.mark.parametrize("name", WHOLE)
def test_other_readers_get_the_logits(name, batch, calls):
    model = Model(LOSSES["function"])
    ours, _ = fused(model, batch)
    calls.clear()
    ours.lossy = model.lossy = WHOLE[name]
    assert_close(results(ours, *batch), results(model, *batch))
    assert not calls
    torch.testing.assert_close(ours(*batch)[0], model(*batch)[0])
    for alone in (Model(WHOLE[name]), Model(LOSSES["function"], words=WIDTH)):
        labels = batch[1] % WIDTH
        _, plan = fused(alone, (batch[0], labels))
        assert "skip_logits" not in plan.counts()
        assert plan.refusals[-1].pattern == "skip_logits"


def test_logits_that_are_read_beside_the_loss_are_given_back(batch):
    def lossy(y, targets):
        loss = LOSSES["function"](y, targets)
        return loss + 0.1 * y.square().mean()

    model = Model(LOSSES["function"])
    ours, _ = fused(model, batch)
    ours.lossy = model.lossy = lossy
    assert_close(results(ours, *batch), results(model, *batch))
    torch.testing.assert_close(ours(*batch)[0], model(*batch)[0])


def test_rows_that_are_no_longer_those_of_the_head_are_computed():
    head = Model(LOSSES["function"])
    ours, _ = fused(head, (torch.randn(2, ROWS, WIDTH), torch.randint(WORDS, (2, ROWS))))
    late = Logits.of(torch.randn(2, 3, WIDTH), ours.head)
    assert type(late.view(-1, WORDS).contiguous().float()) is Logits
    assert late.view(6, WORDS).shape == (6, WORDS)
    assert type(late.view(2, -1)) is torch.Tensor  # which computes them
    assert type(late.view(6, WORDS)) is torch.Tensor
