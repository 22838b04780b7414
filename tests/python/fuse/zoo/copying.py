# SPDX-License-Identifier: MIT
"""Situations in which a fused model is copied, stored, loaded, changed in place, or undone."""

from __future__ import annotations

import copy
import inspect
import io
import tempfile

import torch
from torch import nn

import transformer_kernels as tfk

from .compare import (
    Results,
    assert_as_exact,
    assert_close,
    assert_equal,
    forward,
    gradients,
    loss_of,
    reference,
    train,
)
from .families import Inputs, randomise
from .running import by_the_rule
from .subject import Pair, Subject, is_pretrained, situation


def _classes(model: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules()}


def _attributes(model: nn.Module) -> dict[str, list[str]]:
    return {name: sorted(vars(module)) for name, module in model.named_modules()}


def other_weights(model: nn.Module, seed: int = 11) -> None:
    torch.manual_seed(seed)
    randomise(model)


@situation()
def structure(subject: Subject) -> None:
    """Class, names of classes, keys, parameters, hooks and signature are stock's."""
    stock = subject.family.build()
    ours = copy.deepcopy(stock)
    before = {name: id(x) for name, x in ours.state_dict(keep_vars=True).items()}
    subject.fuse(ours, subject.inputs())
    assert list(ours.state_dict()) == list(stock.state_dict())
    assert {name: id(x) for name, x in ours.state_dict(keep_vars=True).items()} == before
    assert [name for name, _ in ours.named_modules()] == [n for n, _ in stock.named_modules()]
    assert ours.training == stock.training
    assert inspect.signature(ours.forward) == inspect.signature(stock.forward)
    for (name, mine), theirs in zip(ours.named_modules(), stock.modules(), strict=True):
        assert isinstance(mine, type(theirs)), name
        for attribute in ("__name__", "__qualname__", "__module__"):
            assert getattr(type(mine), attribute) == getattr(type(theirs), attribute), name
        assert repr(mine) == repr(theirs), name


@situation()
def the_root(subject: Subject) -> None:
    """The model itself, which user code compares and builds anew by its class."""
    pair = subject.pair()
    same = type(pair.ours) is type(pair.stock)
    assert same, f"is another class of the name {type(pair.ours).__name__}"


@situation()
def unfused(subject: Subject) -> None:
    """Nothing is left of it, after runs in both modes: not one attribute, not one bit."""
    stock = subject.family.build()
    ours = copy.deepcopy(stock)
    classes = _classes(ours)
    inputs = subject.inputs()
    subject.fuse(ours, inputs)
    for model in (ours, stock):
        train(model.train(), inputs)
        forward(model.eval(), inputs)
        model.zero_grad(set_to_none=True)
    tfk.unfuse(ours)
    assert _classes(ours) == classes
    assert _attributes(ours) == _attributes(stock)
    assert_equal(forward(ours, inputs), forward(stock, inputs))
    assert_equal(train(ours, inputs), train(stock, inputs))


@situation()
def the_recorded_run(subject: Subject) -> None:
    """Fusing leaves the weights, the random numbers, the mode and a neighbour as they were."""
    stock = subject.family.build(dropout=0.1).train()
    neighbour = copy.deepcopy(stock)
    if is_pretrained(subject.family):
        neighbour = type(stock)(stock.config)  # shares the configuration, which is one object
        neighbour.load_state_dict(stock.state_dict())
    wanted = forward(neighbour.eval(), subject.inputs())
    settings = str(getattr(stock, "config", None))
    weights = {name: x.clone() for name, x in stock.state_dict().items()}
    torch.manual_seed(13)
    drawn = torch.randn(3)
    torch.manual_seed(13)
    subject.fuse(stock, subject.inputs())
    assert torch.equal(torch.randn(3), drawn)
    assert all(module.training for module in stock.modules())
    assert all(x.grad is None for x in stock.parameters())
    assert_equal(stock.state_dict(), weights)
    assert_equal(forward(neighbour, subject.inputs()), wanted)
    assert str(getattr(stock, "config", None)) == settings


@situation()
def fused_twice(subject: Subject) -> None:
    pair = subject.pair()
    classes, attributes = _classes(pair.ours), _attributes(pair.ours)
    again = subject.fuse(pair.ours, pair.inputs)
    assert _classes(pair.ours) == classes
    assert _attributes(pair.ours) == attributes
    assert again.to_json() == pair.plan.to_json()
    by_the_rule(pair, forward)


def _copy_is_its_own(subject: Subject, pair: Pair, other: nn.Module) -> None:
    """A copy computes what the model does, keeps doing so when the original is changed, and
    follows its own weights."""
    assert type(other) is type(pair.ours)
    assert list(other.state_dict()) == list(pair.stock.state_dict())
    inputs = subject.inputs(seed=9)
    other.eval()
    wanted = forward(pair.ours, inputs)
    other_weights(pair.ours)
    assert_close(forward(other, inputs), wanted, 1e-6)
    other_weights(other, seed=17)
    stock = copy.deepcopy(pair.stock)
    stock.load_state_dict(other.state_dict())
    for run, models in ((forward, (other, stock)), (train, (other.train(), stock.train()))):
        ours, found = (run(model, inputs) for model in models)
        assert_as_exact(ours, found, reference(stock, run, inputs))


@situation()
def deep_copy(subject: Subject) -> None:
    pair = subject.pair()
    _copy_is_its_own(subject, pair, copy.deepcopy(pair.ours))


@situation()
def pickled(subject: Subject) -> None:
    pair = subject.pair()
    forward(pair.ours, pair.inputs)
    file = io.BytesIO()
    torch.save(pair.ours, file)
    file.seek(0)
    _copy_is_its_own(subject, pair, torch.load(file, weights_only=False))


@situation(is_pretrained, "is not of transformers")
def saved_and_loaded(subject: Subject) -> None:
    """The folder of a fused model is a stock model's, and a loaded model may be fused."""
    pair = subject.pair()
    with tempfile.TemporaryDirectory() as folder:
        pair.ours.save_pretrained(folder)
        loaded = type(pair.stock).from_pretrained(folder).eval()
    assert _classes(loaded) == _classes(pair.stock)
    assert_equal(forward(loaded, pair.inputs), forward(pair.stock, pair.inputs))
    subject.fuse(loaded, pair.inputs)
    assert_close(forward(loaded, pair.inputs), forward(pair.ours, pair.inputs), 1e-6)


@situation()
def weights_loaded_later(subject: Subject) -> None:
    pair = subject.pair()
    forward(pair.ours, pair.inputs)
    other_weights(pair.stock)
    pair.ours.load_state_dict(pair.stock.state_dict())
    by_the_rule(pair, forward)
    other_weights(pair.stock, seed=23)
    pair.ours.load_state_dict(copy.deepcopy(pair.stock.state_dict()), assign=True)
    by_the_rule(pair, forward)


@situation()
def optimizer_steps(subject: Subject) -> None:
    """Weights after steps of SGD in place; the optimizer had the parameters before they were
    fused."""
    stock = subject.family.build()
    ours = copy.deepcopy(stock)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
                  for model in (ours, stock)]  # fmt: skip
    subject.fuse(ours, subject.inputs())
    for step in range(3):
        inputs = subject.inputs(seed=30 + step)
        for model, optimizer in zip((ours, stock), optimizers, strict=True):
            train(model.train(), inputs)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert_close(dict(ours.named_parameters()), dict(stock.named_parameters()), 1e-4)


@situation()
def frozen_parameters(subject: Subject) -> None:
    """Every second parameter takes no gradient."""

    def freeze(model: nn.Module) -> None:
        for parameter in list(model.parameters())[::2]:
            parameter.requires_grad_(False)

    by_the_rule(subject.pair(prepare=freeze), train)
    pair = subject.pair()
    for model in pair.both:
        freeze(model)
    by_the_rule(pair, train)


@situation()
def gradient_accumulation(subject: Subject) -> None:
    """Three batches of different lengths, whose gradients add up."""
    pair = subject.pair()
    batches = [subject.inputs(1, tokens, seed=tokens) for tokens in (40, 9, 57)]

    def accumulate(model: nn.Module, inputs: Inputs) -> Results:
        model.zero_grad(set_to_none=True)
        for batch in inputs["batches"]:
            loss_of(model(**batch)).backward()
        return gradients(model)

    by_the_rule(pair, accumulate, {"batches": batches})
