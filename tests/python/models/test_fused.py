# SPDX-License-Identifier: MIT
"""The switch of the models: modules of PyTorch, fused while it says "ours"."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from transformer_kernels import models
from transformer_kernels.fuse.derive import is_derived

from .conftest import LANGUAGE, STYLES, language_model, vision_transformer
from .test_switch import BUILD, inputs_of

each_model = pytest.mark.parametrize("name", BUILD)
LAYER = ("norm_1", "qkv", "out", "norm_2", "up", "down")


def fused(model) -> int:
    """The number of modules that fusing has given another class."""
    return sum(is_derived(type(module)) for module in model.modules())


@each_model
def test_the_switch_fuses_and_unfuses(name):
    model = BUILD[name]()
    stock = copy.deepcopy(model)
    stock.kernels = "torch"
    assert fused(model) > 0
    assert fused(stock) == 0
    classes = [type(module) for module in stock.modules()]
    *inputs, _ = inputs_of(model)
    before = stock(*inputs)
    stock.kernels = "ours"
    assert fused(stock) == fused(model)
    stock.kernels = "torch"
    assert [type(module) for module in stock.modules()] == classes
    assert torch.equal(stock(*inputs), before)


@pytest.mark.parametrize(
    ("style", "found"),
    [
        ("gpt2", {"norm": 5, "sum_norm": 4, "attention": 2, "linear_then_act": 2, "linear": 6}),
        ("llama", {"norm": 5, "sum_norm": 4, "attention": 2, "rope": 2, "linear": 8}),
    ],
)
def test_the_sites_of_two_layers(style, found):
    sites = vars(language_model(style=style).transformer)["_tfk_plan"].counts()
    assert {pattern: sites.get(pattern) for pattern in found} == found


@each_model
def test_fusing_draws_no_numbers(name):
    states = []
    for kernels in ("torch", "ours"):
        torch.manual_seed(3)
        model = BUILD[name]()
        model.kernels = kernels
        states.append((torch.get_rng_state(), *model.state_dict().values()))
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize("style", STYLES)
def test_names_of_parameters_are_those_of_before(style):
    names = set(language_model(style=style).state_dict())
    layers = {name.split(".")[3] for name in names if name.startswith("transformer.layers.")}
    assert layers == set(LAYER)
    around = {name for name in names if not name.startswith("transformer.layers.")}
    positions = {"positions.weight"} if style != "llama" else set()
    norm = {"transformer.norm.weight"} | ({"transformer.norm.bias"} if style == "gpt2" else set())
    assert around == {"tokens.weight", "head.weight", *positions, *norm}


def test_a_model_without_numbers_is_fused_when_it_has_some():
    with torch.device("meta"):
        model = language_model()
    assert fused(model) == 0
    model.to_empty(device="cpu").load_state_dict(language_model().state_dict())
    tokens = torch.randint(LANGUAGE["vocab_size"], (2, 5))
    found = model(tokens)
    assert fused(model) > 0
    model.kernels = "torch"
    torch.testing.assert_close(found, model(tokens), rtol=1e-4, atol=1e-6)


class _Wrapped(models.LanguageModel):
    """A model of a user's, whose forward needs what its constructor makes last."""

    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        return self.scale * super().forward(tokens)


def test_a_derived_model_is_made_before_it_is_called():
    model = _Wrapped(language_model().config)
    assert fused(model) > 0
    assert model(torch.tensor([[1, 2]])).shape == (1, 2, LANGUAGE["vocab_size"])


@pytest.mark.parametrize("build", [language_model, vision_transformer])
def test_what_is_done_to_a_stock_model_stays_when_it_is_fused(build):
    """An adapter and a hook that were there before the switch is set."""
    model = build("torch", num_layers=1).eval()
    layer, *inputs = model.transformer.layers[0], *inputs_of(model)[:-1]
    layer.up = nn.Sequential(layer.up, nn.Tanh())
    layer.norm_2.register_forward_hook(lambda *of: 1.5 * of[2])
    wanted = model(*inputs)
    model.kernels = "ours"
    assert fused(model) > 0
    torch.testing.assert_close(model(*inputs), wanted, rtol=1e-4, atol=1e-6)
