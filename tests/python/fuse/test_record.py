# SPDX-License-Identifier: MIT
"""The record of a run: which operation made which value, and that the model stays as it was."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from transformer_kernels.fuse.record import record, tensors_in


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
