# SPDX-License-Identifier: MIT
"""The parts of a training step's time, and their floors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.bench import step
from transformer_kernels.bench.training import Recipe
from transformer_kernels.measure.schema import Ceilings
from transformer_kernels.measure.timing import WallTimer
from transformer_kernels.profile.work import Counted

CPU = torch.device("cpu")
BATCH, TOKENS, WIDTH = 2, 8, 16


class Attending(nn.Module):
    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.ours = ours

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.ours:
            q, k, v = (part.unsqueeze(2) for part in (q, k, v))
            return tfk.functional.attention(q, k, v).squeeze(2)
        return F.softmax(q @ k.mT, -1) @ v


def task(device=CPU):
    return step.Task(
        models={"stock": Attending(ours=False), "ours": Attending(ours=True)},
        batch=torch.randn(BATCH, TOKENS, WIDTH, device=device),
        loss_of=lambda model, batch: model(batch).square().mean(),
        recipe=Recipe(4, 1e-3),
        tokens=TOKENS,
    )


def check(result):
    rows = {(row.model, row.part): row for row in result.step_parts}
    assert set(rows) == {(model, part) for model in ("stock", "ours") for part in step.PARTS}
    for (_, part), row in rows.items():
        if part == step.REST:
            assert (row.calls, row.floor_us) == (0, None)
        else:
            assert row.calls > 0
            assert row.us > 0
            assert row.floor_us > 0
    assert rows["ours", step.PRODUCTS].floor_us == rows["stock", step.PRODUCTS].floor_us
    assert rows["ours", step.ATTENTION].calls < rows["stock", step.ATTENTION].calls


def test_every_part_has_its_time_and_its_floor():
    check(step.measure(task(), CPU, rounds=1))


@pytest.mark.cuda
def test_a_step_on_a_gpu():
    device = torch.device("cuda")
    check(step.measure(task(device), device, rounds=1))


@pytest.mark.parametrize(
    ("name", "shapes", "part"),
    [
        ("aten::addmm", [(8, 8)], step.PRODUCTS),  # of whatever shape
        ("aten::bmm", [(4, 8, 16)], step.ATTENTION),
        ("aten::_softmax", [(2, 2, 8, 8)], step.ATTENTION),
        ("aten::_softmax", [(2, 2, 8, 16)], step.MEMORY),
        ("transformer_kernels::attention_forward", [(2, 8, 1, 16)], step.ATTENTION),
        ("transformer_kernels::linear_algorithm_backward", [(8, 8)], step.PRODUCTS),
        ("transformer_kernels::linear_dgated", [(8, 8)], step.PRODUCTS),
        ("transformer_kernels::quantized_linear_forward", [(8, 8)], step.PRODUCTS),
        ("transformer_kernels::cross_entropy_gradient_", [(2, 50)], step.MEMORY),
        ("transformer_kernels::softmax_forward", [(2, 2, 8, 8)], step.ATTENTION),
        ("aten::add", [(), (16,)], step.MEMORY),
    ],
)
def test_a_part_is_told_by_name_and_scores(name, shapes, part):
    assert step.part_of(name, shapes, TOKENS) == part


def test_a_floor_is_the_longer_of_products_and_copies():
    ceilings = Ceilings(10.0, 1 << 28, 2.0, 1024, "float32")  # 10 GB/s, 2 TFLOP/s
    floor = step.Floor(WallTimer(), CPU, ceilings)
    assert floor(Counted("mm", [], 0, 4e6)) == pytest.approx(2.0)
    assert floor(Counted("mm", [], 1 << 24, 1.0)) == floor.copy(1 << 24) > 0
    assert floor.copy(0) == 0
    assert floor.copy(1) == floor.copy(1 << 12)  # what a call costs
    assert floor.copy(1 << 28) == pytest.approx((1 << 28) / 10e3)
    assert floor.copy(1 << 30) == pytest.approx(4 * floor.copy(1 << 28))
    between, ends = floor.copy(3 << 20), (floor.copy(1 << 21), floor.copy(1 << 22))
    assert between == pytest.approx(sum(ends) / 2)
