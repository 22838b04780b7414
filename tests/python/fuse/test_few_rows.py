# SPDX-License-Identifier: MIT
"""Calls of few rows, as a step of generation makes them, go straight to PyTorch's own code; what is
put on a module later is noticed all the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import transformer_kernels as tfk
from transformer_kernels.fuse import floors
from transformer_kernels.fuse.derive import original
from transformer_kernels.fuse.few import GIVEN
from transformer_kernels.fuse.hand import give
from transformer_kernels.fuse.patterns.linear import Linear

from .conftest import ROWS

WIDTH = 64
FEW, MANY = torch.ones(1, 1, WIDTH), torch.ones(2, 40, WIDTH)


@pytest.fixture
def calls(monkeypatch):
    """The numbers of rows of the calls that our code was asked about."""
    rows = []
    forward = Linear.forward

    def counted(self, x):
        rows.append(x.numel() // WIDTH)
        return forward(self, x)

    monkeypatch.setattr(Linear, "forward", counted)
    return rows


def fused(model=None):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH)) if model is None else model
    tfk.fuse(model.eval(), torch.randn(2, 40, WIDTH), measure=False, patterns=["linear"])
    return model


def test_few_rows_ask_nothing(calls):
    model = fused()
    calls.clear()
    stock = nn.functional.linear(FEW, model[0].weight, model[0].bias)
    assert torch.equal(model(FEW), stock)
    assert calls == []
    model(MANY)
    assert calls == [80]
    assert torch.equal(model[0](input=FEW), stock)  # by name
    assert calls == [80]


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def hook(module):
    module.register_forward_hook(lambda _m, _x, y: 2 * y)


def pre_hook(module):
    module.register_forward_pre_hook(lambda _m, x: tuple(2 * x for x in x))


def forward_of_instance(module):
    module.forward = lambda x: 2 * nn.functional.linear(x, module.weight, module.bias)


def forward_of_subclass(module):
    class Other(type(module)):
        def forward(self, x):
            return 2 * super().forward(x)

    module.__class__ = Other


def parametrization(module):
    parametrize.register_parametrization(module, "weight", Doubled())


def compiled_call(module):
    module._compiled_call_impl = lambda x: 2 * module._call_impl(x)


CHANGES = [
    hook, pre_hook, forward_of_instance, forward_of_subclass, parametrization, compiled_call,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_put_on_a_module_later_is_called(change):
    model = fused(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)))
    before = model(FEW)
    change(model[0])
    torch.testing.assert_close(model(FEW), 2 * before)


def test_another_forward_of_the_class_is_called(monkeypatch):
    class Norm(nn.LayerNorm):  # whose derived class no other module has
        pass

    monkeypatch.setitem(floors._CPU, "norm", (ROWS, ROWS))
    model = nn.Sequential(Norm(WIDTH))
    assert tfk.fuse(model, MANY, measure=False).counts() == {"norm": 1}
    type(model[0]).forward = lambda _self, x: 3 * x
    assert torch.equal(model(FEW), 3 * FEW)


def test_a_hook_of_all_modules_is_called():
    model, seen = fused(), []
    handle = nn.modules.module.register_module_forward_hook(lambda m, _x, _y: seen.append(m))
    try:
        model(FEW)
    finally:
        handle.remove()
    assert seen == [model[0], model]


def test_what_replaces_the_call_of_all_modules_is_called(monkeypatch):
    model, seen, call = fused(), [], nn.Module.__call__

    def watched(module, *args, **kwargs):
        seen.append(module)
        return call(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", watched)
    model(FEW)
    assert seen == [model, model[0]]


def test_a_class_that_calls_otherwise_is_called_so(monkeypatch):
    monkeypatch.setitem(floors._CPU, "norm", (ROWS, ROWS))

    class Twice(nn.LayerNorm):
        def __call__(self, x):
            return 2 * super().__call__(x)

    model = nn.Sequential(nn.LayerNorm(WIDTH), Twice(WIDTH))
    stock = model(FEW)
    plan = tfk.fuse(model, MANY, measure=False, patterns=["norm"])
    assert plan.counts() == {"norm": 2}
    assert torch.equal(model(FEW), stock)
    kind = type(model[1])
    model[1].__class__ = type("Sharded", (kind,), {})  # as FSDP and parametrizations do
    assert torch.equal(model(FEW), stock)
    kind.forward = lambda _self, x: 3 * x
    assert torch.equal(model[1](FEW), 6 * FEW)


def test_a_result_that_was_left_is_taken_at_any_size():
    norm = nn.LayerNorm(WIDTH)
    model = nn.Sequential(norm)
    tfk.fuse(model, MANY, measure=False, patterns=["norm"])
    norm.__dict__["_tfk_few"] = MANY.numel()
    y = torch.zeros(())
    give(norm, FEW, y)
    assert norm(FEW) is y
    assert GIVEN not in norm.__dict__


def test_unfusing_leaves_nothing():
    model = fused()
    tfk.unfuse(model)
    assert type(model[0]) is original(type(model[0]))
    assert not [name for name in vars(model[0]) if name.startswith("_tfk")]


def test_one_graph_serves_few_rows_and_many():
    model, graphs = fused(), []

    def count(module, _inputs):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    run = torch.compile(model, backend=count, dynamic=True)
    with torch.no_grad():
        for rows in (80, 40, 2):
            run(torch.randn(rows, WIDTH))
    torch._dynamo.reset()
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_usual_rows(kind, monkeypatch):
    monkeypatch.undo()  # those of tests

    def rows(pattern, **more):
        return floors.usual(pattern, torch.device(kind), **more).rows

    assert rows("norm", calls=6) == rows("activation", calls=8) == 1
    assert rows("linear", weight=1 << 22) <= rows("linear", weight=1 << 10)
    assert rows("sum_norm") > 1
    one_call = rows("norm"), rows("activation")
    assert min(one_call) > 1 if kind == "cpu" else one_call == (1, 1)
