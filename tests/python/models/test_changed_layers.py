# SPDX-License-Identifier: MIT
"""Layers that were replaced, hooked into, pruned or quantised run as they are in both switches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_all

from transformer_kernels.testing.modules import CHANGES, quantize, results

from .test_switch import BUILD, _cast, inputs_of

MODELS = ("gpt2", "llama", "class", "nodes by attention")
CLOSE = {"rtol": 1e-6, "atol": 1e-9}
each_model = pytest.mark.parametrize("name", MODELS)


def places(model) -> list[str]:
    """The layers that stock PyTorch calls, by name."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.Conv2d))
    ]


def pair(name: str) -> Iterator[tuple[str, nn.Module]]:
    """One model with either setting of the switch, with equal weights."""
    for kernels in ("torch", "ours"):
        torch.manual_seed(3)
        model = BUILD[name](num_layers=1).double()
        model.kernels = kernels
        yield kernels, model


def loss_of(name: str):
    torch.manual_seed(4)
    given = [_cast(x, torch.float64) for x in inputs_of(next(pair(name))[1])]
    return lambda model: model(*given)


@each_model
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_is_called(name, change):
    loss = loss_of(name)
    for place in places(next(pair(name))[1]):
        found, logs = {}, {}
        for kernels, model in pair(name):
            logs[kernels] = []
            torch.manual_seed(5)
            parent, _, leaf = place.rpartition(".")
            CHANGES[change](model.get_submodule(parent), leaf, logs[kernels])
            found[kernels] = results(model, loss)
        assert logs["ours"] == logs["torch"], place
        assert found["ours"].keys() == found["torch"].keys(), place
        for key, wanted in found["torch"].items():
            torch.testing.assert_close(found["ours"][key], wanted, msg=f"{place}: {key}", **CLOSE)


@each_model
def test_quantised_weights_are_read_by_stock_layers(name):
    loss = loss_of(name)
    places_of = [p for p in places(next(pair(name))[1]) if p.split(".")[-1] in ("out", "up")]
    assert len(places_of) == 2
    for place in places_of:
        found = []
        for _, model in pair(name):
            quantize(*_parent(model, place))
            found.append(results(model, loss))
        torch.testing.assert_close(found[1], found[0], **CLOSE)


def _parent(model: nn.Module, place: str) -> tuple[nn.Module, str]:
    parent, _, leaf = place.rpartition(".")
    return model.get_submodule(parent), leaf


@each_model
@pytest.mark.parametrize(
    "register",
    [
        of_all.register_module_forward_pre_hook,
        of_all.register_module_forward_hook,
        of_all.register_module_full_backward_pre_hook,
        of_all.register_module_full_backward_hook,
    ],
)
def test_a_hook_of_all_modules_sees_each(name, register):
    loss, seen = loss_of(name), {}
    for kernels, model in pair(name):
        called = seen[kernels] = set()
        names = {module: name for name, module in model.named_modules()}
        handle = register(lambda m, *_, called=called, names=names: called.add(names[m]) or None)
        try:
            results(model, loss)
        finally:
            handle.remove()
    assert seen["ours"] == seen["torch"]
    assert seen["torch"] >= set(places(model))


def test_a_class_whose_forward_was_replaced_is_called(monkeypatch):
    stock = nn.LayerNorm.forward
    loss, found = loss_of("gpt2"), []
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: 1.5 * stock(self, x))
    for _, model in pair("gpt2"):
        found.append(results(model, loss))
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_changes_come_and_go_between_calls():
    loss, (_, model) = loss_of("gpt2"), list(pair("gpt2"))[1]
    before, calls = results(model, loss), []
    handle = model.transformer.layers[0].up.register_forward_hook(lambda *_: calls.append(1))
    results(model, loss)
    handle.remove()
    torch.testing.assert_close(results(model, loss), before)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "table",
    [
        lambda: nn.Embedding(37, 24, padding_idx=1),
        lambda: nn.Embedding(37, 24, max_norm=0.3),
        lambda: nn.Embedding(37, 24, scale_grad_by_freq=True),
    ],
    ids=["padding_idx", "max_norm", "scale_grad_by_freq"],
)
@pytest.mark.parametrize("place", ["tokens", "positions"])
def test_options_of_a_table_are_kept(place, table):
    loss, found = loss_of("gpt2"), []
    for _, model in pair("gpt2"):
        setattr(model, place, table().double())
        found.append(results(model, loss))
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_patches_may_overlap():
    loss, found = loss_of("mean"), []
    for _, model in pair("mean"):
        torch.manual_seed(6)
        model.patches = nn.Conv2d(2, 24, (5, 7), (3, 5), (1, 1)).double()
        found.append(results(model, loss))
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@each_model
def test_logits_that_a_hook_on_the_head_keeps_stay_logits(name):
    loss, kept = loss_of(name), {}
    for kernels, model in pair(name):
        model.head.register_forward_hook(lambda *of, k=kernels: kept.update({k: of[2]}))
        results(model, loss)
    torch.testing.assert_close(kept["ours"], kept["torch"], **CLOSE)
