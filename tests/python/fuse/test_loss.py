# SPDX-License-Identifier: MIT
"""The loss of a language model, with its logits and without."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse.derive import Gate
from transformer_kernels.fuse.patterns import loss as loss_module
from transformer_kernels.fuse.patterns._logits import Logits, NoLogits
from transformer_kernels.fuse.patterns.loss import loss_of_next

nn_loss = importlib.import_module("transformer_kernels.nn.loss")

WORDS, WIDTH = 53, 32


def shifted_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100,
                 shift_labels=None, **_):  # fmt: skip
    """A loss of next tokens, with the arguments of Hugging Face's models."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(
        logits.float().view(-1, vocab_size), shift_labels.view(-1), ignore_index=ignore_index,
        reduction=reduction,
    )  # fmt: skip
    return loss if num_items_in_batch is None else loss / num_items_in_batch


class Model(nn.Module):
    """A language model whose head and loss are as Hugging Face writes them."""

    scales = False

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self._loss = shifted_loss

    @property
    def loss_function(self):
        return self._loss

    @loss_function.setter
    def loss_function(self, value):
        self._loss = value

    def forward(self, input_ids, labels=None, **options):
        logits = self.head(self.norm(self.table(input_ids)))
        if self.scales:
            logits = logits * 2
        if labels is None:
            return {"logits": logits}
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=WORDS, **options)
        return {"loss": loss, "logits": logits}


class Classifier(nn.Module):
    """Makes its loss in its forward."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x, labels):
        return CrossEntropyLoss(ignore_index=3)(self.head(x), labels)


@pytest.fixture
def batch():
    tokens = torch.randint(WORDS, (2, 40))
    labels = tokens.clone()
    labels[0, :5] = -100
    return {"input_ids": tokens, "labels": labels}


@pytest.fixture(params=[False, True])
def skip_logits(request):
    return request.param


def fused(model, inputs, **options):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, inputs, measure=False, **options)


@pytest.mark.parametrize("options", [{}, {"num_items_in_batch": 7}])
def test_loss_and_gradients_are_stocks(batch, skip_logits, options):
    model = Model()
    ours, plan = fused(model, batch, skip_logits=skip_logits)
    assert plan.counts()["loss"] == 1
    assert plan.counts().get("skip_logits", 0) == (2 if skip_logits else 0)
    losses = [m(**batch, **options)["loss"] for m in (model, ours)]
    for loss in losses:
        (3 * loss).backward()
    torch.testing.assert_close(losses[1], losses[0])
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_skipping_that_changes_the_loss_is_refused(batch, monkeypatch):
    monkeypatch.setattr(loss_module.functional, "linear_cross_entropy", lambda x, *_, **__: x.sum())
    model = Model()
    ours, plan = fused(model, batch, skip_logits=True)
    assert "skip_logits" not in plan.counts()
    assert plan.refusals[-1].reason == "without logits the model has another loss"
    torch.testing.assert_close(ours(**batch)["loss"], model(**batch)["loss"])
    assert ours.training


def test_logits_are_kept_unless_a_loss_is_trained_by(batch):
    ours, _ = fused(Model(), batch, skip_logits=True)
    trained = ours(**batch)["logits"]
    assert isinstance(trained, NoLogits)
    assert not trained
    assert "skip_logits=True" in repr(trained)
    with pytest.raises(AttributeError, match="shape: the logits were not computed"):
        _ = trained.shape
    want = ours.head(ours.norm(ours.table(batch["input_ids"])))
    assert torch.equal(ours(batch["input_ids"])["logits"], want)
    with torch.no_grad():
        assert torch.equal(ours(**batch)["logits"], want)
    assert torch.equal(ours.eval()(**batch)["logits"], want)


def test_logits_that_more_than_the_loss_reads_are_computed(batch):
    model = Model()
    ours, plan = fused(model, batch, skip_logits=True)
    assert "skip_logits" in plan.counts()
    ours.scales = model.scales = True
    torch.testing.assert_close(ours(**batch)["loss"], model(**batch)["loss"])
    hidden = torch.randn(2, 3, WIDTH, requires_grad=True)
    late = Logits.of(hidden, ours.head)
    assert late.shape == (2, 3, WORDS)
    torch.testing.assert_close(late.softmax(-1), ours.head(hidden).softmax(-1))
    late.sum().backward()
    assert hidden.grad is not None


@pytest.mark.filterwarnings("ignore:fuse")
def test_another_loss_or_a_changed_head_is_the_users(batch, skip_logits):
    model = Model()
    ours, _ = fused(model, batch, skip_logits=skip_logits)
    for m in (model, ours):
        m.head.register_forward_hook(lambda _module, _args, y: y * 2)
    torch.testing.assert_close(ours(**batch)["loss"], model(**batch)["loss"])
    for m in (model, ours):
        m.loss_function = lambda **given: given["logits"].square().mean()
    torch.testing.assert_close(ours(**batch)["loss"], model(**batch)["loss"])


def test_a_loss_made_in_a_forward():
    x, labels = torch.randn(40, WIDTH), torch.randint(WORDS, (40,))
    labels[:9] = 3
    model = Classifier()
    ours, plan = fused(model, (x, labels))
    assert plan.counts() == {"linear": 1, "loss": 1}
    torch.testing.assert_close(ours(x, labels), model(x, labels))


@pytest.mark.parametrize("make", [Model, Classifier])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_model_keeps_its_class_and_a_copy_is_its_own(make, copied, batch):
    model = make()
    inputs = batch if make is Model else (torch.randn(40, WIDTH), torch.randint(WORDS, (40,)))
    run = (lambda m: m(**inputs)["loss"]) if make is Model else (lambda m: m(*inputs))
    ours, plan = fused(model, inputs, patterns=["loss"])
    assert plan.counts() == {"loss": 1}
    assert type(ours) is make
    assert inspect.signature(ours.forward) == inspect.signature(model.forward)
    other, before = copied(ours), run(ours)
    nn.init.normal_(ours.head.weight)
    torch.testing.assert_close(run(other), before)
    for m in (ours, other):
        assert vars(m) != vars(model)
        tfk.unfuse(m)
        assert vars(m).keys() == vars(model).keys()
        assert m.forward.__func__ is make.forward


def test_what_the_user_sets_later_is_is_called_and_stays(batch):
    ours, _ = fused(Model(), batch)
    ours.loss_function = shifted_loss
    assert ours.loss_function is shifted_loss
    tfk.unfuse(ours)
    assert ours.loss_function is shifted_loss


def test_a_replica_reads_its_own_parameters():
    x, labels = torch.randn(40, WIDTH), torch.randint(WORDS, (40,))
    model = Classifier()
    tfk.fuse(model, (x, labels), measure=False)
    replica = model._replicate_for_data_parallel()
    replica.head = nn.Linear(WIDTH, WORDS)
    wanted = CrossEntropyLoss(ignore_index=3)(replica.head(x), labels)
    torch.testing.assert_close(replica(x, labels), wanted)
    assert "forward" in vars(model)


def test_a_forward_that_was_replaced_is_the_users():
    x, labels = torch.randn(40, WIDTH), torch.randint(WORDS, (40,))
    model = Classifier()
    stock = model.forward
    model.forward = lambda x, labels: 2 * stock(x, labels)
    wanted = model(x, labels)
    plan = tfk.fuse(model, (x, labels), measure=False)
    assert [r.reason for r in plan.refusals] == ["its forward was replaced"]
    assert torch.equal(model(x, labels), wanted)


def test_only_a_loss_of_next_tokens_is_taken_for_one(batch):
    class Unshifted(Model):
        def __init__(self):
            super().__init__()
            self._loss = lambda logits, labels, **_: F.cross_entropy(
                logits.flatten(0, 1), labels.flatten()
            )

    _, plan = fused(Unshifted(), batch)
    assert "loss" not in plan.counts()
    assert {r.pattern for r in plan.refusals} == {"loss"}


def test_each_token_counts_as_a_row(batch, monkeypatch):
    class Unshifted(Model):
        def forward(self, input_ids, labels):
            logits = self.head(self.norm(self.table(input_ids)))
            return CrossEntropyLoss()(logits.view(-1, WORDS), labels.view(-1))

    calls = []
    stock = nn_loss.cross_entropy
    monkeypatch.setattr(
        nn_loss, "cross_entropy", lambda *given, **more: calls.append(1) or stock(*given, **more)
    )
    ours, _ = fused(Unshifted(), batch)
    tokens = batch["input_ids"].numel()
    for rows in (tokens, tokens + 1):
        ours._tfk_gates["loss"] = Gate(rows=rows)
        calls.clear()
        ours(**batch)
        assert len(calls) == (1 if rows == tokens else 0)


def test_the_loss_reads_logits_of_16_bits_as_they_are():
    logits, labels = torch.randn(2, 9, 31).bfloat16(), torch.randint(31, (2, 9))
    ours, stock = (f(logits, labels, 31) for f in (loss_of_next, shifted_loss))
    assert ours.dtype is stock.dtype is torch.float32
    torch.testing.assert_close(ours, stock, rtol=1e-2, atol=1e-2)
