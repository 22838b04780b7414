# SPDX-License-Identifier: MIT
"""The record of a run: which operation made which value, and that the model stays as it was."""

from __future__ import annotations

import gc
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import nn

from transformer_kernels.fuse.record import record, tensors_in, with_items


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x).view(-1, 8)
        y += 1
        return self.linear(y.float()) * 2


def test_values_are_followed_from_operation_to_operation():
    model = Twice()
    trace = record(model, (torch.randn(2, 3, 8),), {})
    assert [node.name for node in trace.nodes] == ["linear", "view", "add", "linear", "mul"]
    assert [node.path for node in trace.nodes] == ["linear", "", "", "linear", ""]
    assert [call.path for call in trace.calls] == ["", "linear", "linear"]
    root, first, second = trace.calls
    assert trace.source_node(first.outs[0]) is trace.nodes[0]
    assert trace.source_node(second.ins[0]) is trace.nodes[2]  # in place, so another value
    assert trace.maker[root.outs[0]].name == "mul"
    assert [c.path for c in trace.calls_in(root)] == ["linear", "linear"]
    assert trace.values[root.outs[0]].shape == (6, 8)


def test_the_record_keeps_no_result():
    kept = []

    class Model(nn.Module):
        def forward(self, x):
            y = x * 2
            kept.append(weakref.ref(y))
            return y + 1

    trace = record(Model(), (torch.randn(4),), {})
    gc.collect()
    assert kept[0]() is None
    assert len(trace.nodes) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_random_numbers_flags_and_gradients_are_as_before(fails):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.still = nn.Dropout(0.5), nn.Dropout(0.5).eval()

        def forward(self, x):
            assert not self.training
            assert not torch.is_grad_enabled()
            torch.rand(3)
            if fails:
                raise RuntimeError("no")
            return self.drop(x)

    model = Model()
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    try:
        record(model, (torch.ones(4),), {})
    except RuntimeError:
        assert fails
    assert torch.equal(torch.rand(2), want)
    assert [m.training for m in model.modules()] == [True, True, False]
    assert torch.is_grad_enabled()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_tensors_are_found_in_trees():
    a, b, c = (torch.zeros(i) for i in range(3))
    assert [x.numel() for x in tensors_in({"a": a, "b": [b, (c, 3)], "d": None})] == [0, 1, 2]


class Named(NamedTuple):
    first: object
    second: object = None


class Own(tuple):
    def __new__(cls, name, *items):
        made = super().__new__(cls, items)
        made.name = name
        return made


class Listed(list):
    def __init__(self, name, *items):
        super().__init__(items)
        self.name = name


@pytest.mark.parametrize(
    "x",
    [(1, 2), [1, 2], Named(1, 2), Own("x", 1, 2), Listed("x", 1, 2), torch.Size((1, 2)),
     torch.return_types.max((1, 2))],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_a_tuple_of_other_items_is_of_the_same_class(x):
    found = with_items(x, (item + 1 for item in x))
    assert type(found) is type(x)
    assert [*found] == [2, 3]
    assert [*x] == [1, 2]
    assert getattr(found, "name", None) == getattr(x, "name", None)


def test_the_record_keeps_no_argument_of_an_operation():
    class Model(nn.Module):
        def forward(self, x):
            return torch.stack(Named(x, x))

    (node,) = record(Model(), (torch.zeros(2),), {}).nodes
    assert node.args == (Named(None, None),)
