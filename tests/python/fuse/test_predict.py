# SPDX-License-Identifier: MIT
"""Predicted times: the operations of a site, their sizes, and the sum of their times."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.fuse import cost
from transformer_kernels.fuse.predict import Predictor, _corners, _layout, _neighbours, operations
from transformer_kernels.fuse.site import Calls
from transformer_kernels.fuse.table import Table
from transformer_kernels.testing.transformer import Transformer

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 16, 17, 28, 37, 64, 962, 50257])
def test_round_sizes_lie_around_a_size(size):
    below, above = _neighbours(size)
    assert below <= size <= above <= 1.25 * below
    assert _neighbours(below) == (below, below)
    assert _neighbours(above) == (above, above)


def test_shares_of_corners_give_the_sizes():
    sizes = [37, 962]
    corners = list(_corners(sizes))
    assert len(corners) == 4
    assert math.isclose(sum(share for _, share in corners), 1)
    for size in sizes:
        logarithm = sum(share * math.log(corner[size]) for corner, share in corners)
        assert math.isclose(math.exp(logarithm), size)


@pytest.mark.parametrize(
    "x",
    [torch.randn(2, 37, 8), torch.randn(8, 37).t(), torch.randn(2, 5, 3, 4).transpose(1, 2),
     torch.randn(3, 1).expand(3, 7), torch.randint(9, (4,)), torch.rand(3) > 0],
)  # fmt: skip
def test_operands_lie_in_memory_as_those_that_were_seen(x):
    made = _layout(x).made(CPU)
    assert (made.shape, made.stride(), made.dtype) == (x.shape, x.stride(), x.dtype)


def test_operations_of_both_passes_are_seen():
    layer = nn.Linear(8, 4)

    def run():
        return torch.autograd.grad(layer(torch.randn(3, 8)).relu().sum(), layer.weight)

    names = [str(operation.function) for operation in operations(run)]
    expected = ["aten.addmm.default", "aten.relu.default", "aten.threshold_backward.default",
                "aten.mm.default"]  # fmt: skip
    assert [name for name in names if name in expected] == expected
    assert not any("view" in name or "aten.t." in name for name in names)


def test_other_sizes_reach_multiples_and_arguments():
    x = torch.randn(37, 111)

    def run():
        return torch.nn.functional.layer_norm(x, (111,)), x.new_ones(37, 74) @ x.new_ones(74, 5)

    norm, product = [o for o in operations(run) if "ones" not in str(o.function)]
    assert norm.sizes() == [37]
    assert str(norm.scaled({37: 40})).startswith(
        "aten.native_layer_norm.default 40x120 float32, 120"
    )
    norm.scaled({37: 40}).run(CPU)()
    assert "40x80" in str(product.scaled({37: 40}))
    assert "80x5" in str(product.scaled({37: 40}))


def _power_law(run):
    """A time that is a power of the size of the first operand."""
    (operation,) = operations(run)
    return 3.0 * math.prod(operation.args[0].shape) ** 0.7


def test_a_power_of_the_size_is_predicted_exactly():
    predictor = Predictor(Table(CPU), CPU, _power_law)
    calls, few = (Calls(torch.exp, torch.tanh, (torch.randn(rows, 99),)) for rows in (45, 8))

    def make(function, calls):
        return lambda: function(*calls.tensors)

    found = predictor.times("a site", make, calls, few)
    assert found.stock == found.ours == pytest.approx(3.0 * (45 * 99) ** 0.7, rel=1e-3)


def test_what_takes_no_made_up_numbers_has_no_prediction():
    predictor = Predictor(Table(CPU), CPU, lambda run: run() or 1.0)
    matrix = torch.eye(3) + 1

    def make(function, calls):
        return lambda: function(*calls.tensors)

    calls = Calls(torch.linalg.cholesky, torch.exp, (matrix,))
    assert predictor.times("a site", make, calls, calls) is None


def test_a_plan_predicts_and_keeps_the_times_of_operations(monkeypatch):
    monkeypatch.setattr(cost, "_SECONDS_OF_OPERATION", 0.0)
    model, inputs = Transformer(), (torch.randn(2, 40, 32),)
    first = tfk.plan(model, inputs, predict=True, patterns=["norm", "mlp"])
    sites = [*first.sites, *first.declined]
    assert {site.pattern for site in sites} == {"norm", "mlp"}
    assert all(us > 0 for site in sites for times in site.predicted for us in times)
    record = json.loads(first.to_json())
    for site in (*record["sites"], *record["declined"]):
        assert site["predicted_training_us"].keys() == site["training_us"].keys()
    if first.sites:
        assert "predicted us" in str(first)
    monkeypatch.setattr(cost, "_least_of_wall", None)  # nothing is timed again
    second = tfk.plan(model, inputs, predict=True, patterns=["norm", "mlp"])
    assert [s.predicted for s in (*second.sites, *second.declined)] == [s.predicted for s in sites]


def test_without_being_asked_a_plan_predicts_nothing():
    made = tfk.plan(Transformer(), (torch.randn(2, 40, 32),), patterns=["norm"])
    assert all(site.predicted is None for site in (*made.sites, *made.declined))
    assert "predicted" not in str(made)
