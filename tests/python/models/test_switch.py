# SPDX-License-Identifier: MIT
"""Properties of every model: one switch, the same weights and the same results."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from transformer_kernels import models
from transformer_kernels.functional import Graph
from transformer_kernels.testing import levels as held

from .conftest import (
    graph_batch,
    graph_network,
    in_both,
    language_model,
    results,
    vision_transformer,
)

# Tensors that a layer stores, and so rounds, and those around the layers.
STORED = 2 * 10 + 4
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
BUILD = {
    "gpt2": lambda **o: language_model(style="gpt2", **o),
    "llama": lambda **o: language_model(style="llama", **o),
    "tied": lambda **o: language_model(style="tied", **o),
    "class": lambda **o: vision_transformer(pool="class", **o),
    "mean": lambda **o: vision_transformer(pool="mean", activation="geglu", **o),
    "nodes by sums": lambda **o: graph_network(messages="sum", **o),
    "nodes by means": lambda **o: graph_network(messages="mean", norm="rms_norm", **o),
    "nodes by maxima": lambda **o: graph_network(messages="max", **o),
    "nodes by attention": lambda **o: graph_network(messages="attention", **o),
    "graphs": lambda **o: graph_network(messages="attention", pool="max", **o),
}
# Two of bfloat16's numbers are often equal: which is the largest, and has the gradient, is chance.
MAXIMA = ("nodes by maxima", "graphs")
CASES = [(n, k) for n in BUILD for k in DTYPES if k is not torch.bfloat16 or n not in MAXIMA]
each_model = pytest.mark.parametrize("name", BUILD)


def inputs_of(model, batch: int = 3) -> tuple[Any, ...]:
    """The model's inputs; the targets come last."""
    config = model.config
    if isinstance(model, models.GraphNetwork):
        x, edges, _ = graph_batch(5 * batch, 16 * batch)
        graph = Graph.from_edges(edges, len(x))
        targets = torch.randint(config.num_classes, (len(x) if config.pool is None else 1,))
        return x, graph, targets
    if isinstance(model, models.LanguageModel):
        tokens = torch.randint(config.vocab_size, (batch, 18))
        return tokens[:, :-1], tokens[:, 1:]
    images = torch.randn(batch, config.channels, *config.image)
    return images, torch.randint(config.num_classes, (batch,))


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def spread(model):
    """Draws weights that are not near 0, so that no part is lost beside the residual."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@pytest.mark.parametrize(("name", "kind"), CASES, ids=str)
def test_both_switches_give_the_same(name, kind, device):
    ours = spread(BUILD[name]()).to(device, kind)
    stock, exact = in_both(ours)
    narrow = [_cast(x.to(device), kind) for x in inputs_of(ours)]
    wide = [_cast(x, torch.float64) for x in narrow]
    found, theirs, wanted = (
        results(model, *given) for model, given in ((ours, narrow), (stock, narrow), (exact, wide))
    )
    assert {key: x.dtype for key, x in found.items()} == {k: x.dtype for k, x in theirs.items()}
    assert held.violations(found, theirs, wanted, STORED) == []


@each_model
def test_one_takes_the_weights_of_the_other(name):
    ours, stock = BUILD[name](), BUILD[name]()
    stock.kernels = "torch"
    *inputs, _ = inputs_of(ours)
    assert list(ours.state_dict()) == list(stock.state_dict())
    stock.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(*inputs), stock(*inputs), rtol=1e-4, atol=1e-6)


@each_model
def test_weights_depend_on_the_seed_alone(name):
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(BUILD[name]().state_dict())
    same, other = (
        all(torch.equal(x, state[key]) for key, x in states[0].items()) for state in states[1:]
    )
    assert same
    assert not other


@each_model
def test_a_model_is_copied_and_saved(name):
    model = BUILD[name]()
    *inputs, _ = inputs_of(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.kernels == "ours"
        assert torch.equal(twin(*inputs), model(*inputs))


@each_model
def test_dropout_is_drawn_in_training_alone(name):
    model = BUILD[name](dropout=0.5)
    inputs = inputs_of(model)
    for kernels in ("ours", "torch"):
        model.kernels = kernels
        model.train()
        losses = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            losses.append(float(model(*inputs).detach()))
        assert losses[0] == losses[1] != losses[2]
        model.eval()
        assert torch.equal(model(*inputs), model(*inputs))


@each_model
def test_nothing_in_a_batch(name):
    model = BUILD[name]()
    for kernels in ("ours", "torch"):
        model.kernels = kernels
        y = model(*inputs_of(model, batch=0)[:-1])
        y.sum().backward()
        assert y.shape[0] == (1 if name == "graphs" else 0)


@each_model
def test_autocast(name):
    ours = BUILD[name]()
    stock, _ = in_both(ours)
    inputs = inputs_of(ours)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [model(*inputs) for model in (ours, stock)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[0].float(), losses[1].float(), rtol=0.02, atol=0.02)
    assert {p.grad.dtype for p in ours.parameters()} == {torch.float32}


def test_one_graph():
    torch._dynamo.reset()
    model = language_model(style="llama", num_layers=1)
    inputs = inputs_of(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), model(*inputs))


@each_model
def test_what_the_switch_takes(name):
    model = BUILD[name]()
    kind = type(model)
    with pytest.raises(ValueError, match=f"{kind.__name__}: kernels is 'fast', expected one of"):
        kind(model.config, kernels="fast")
    with pytest.raises(TypeError, match=f"{kind.__name__}: kernels is 1, expected one of 'ours'"):
        kind(model.config, kernels=1)
    with pytest.raises(
        TypeError, match=f"{kind.__name__}: config is dict, expected {kind.__name__}"
    ):
        kind({})
    model.kernels = "none"
    with pytest.raises(ValueError, match=f"{kind.__name__}: kernels is 'none', expected one of"):
        model(*inputs_of(model)[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "Config: dim is 0, expected at least 1"),
        ({"dim": 8.0}, "Config: dim is 8.0, expected an int"),
        ({"num_layers": 0}, "Config: num_layers is 0, expected at least 1"),
        ({"num_heads": 5}, r"Config: dim is 24, expected a multiple of num_heads \(5\)"),
        ({"num_kv_heads": 2}, r"Config: num_heads is 3, expected a multiple of num_kv_heads \(2\)"),
        ({"dim": 1024, "num_heads": 2}, "Config: num_heads is 2, expected at least 4"),
        ({"inner_dim": -1}, "Config: inner_dim is -1, expected at least 1"),
        ({"norm": "batch"}, "Config: norm is 'batch', expected one of 'layer_norm', 'rms_norm'"),
        ({"activation": "glu"}, "Config: activation is 'glu', expected one of 'gelu'"),
        ({"dropout": 1.0}, "Config: dropout is 1.0, expected 0 or more and less than 1"),
        ({"bias": None}, "Config: bias is None, expected True or False"),
        ({"eps": "small"}, "Config: eps is 'small', expected a number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("build", [language_model, vision_transformer])
def test_what_no_transformer_can_be(build, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(**options)
