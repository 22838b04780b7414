# SPDX-License-Identifier: MIT
"""Where the tokens of a model's activations can be split: what a recorded run says about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transformer_kernels.fuse.record import record
from transformer_kernels.parallel.between import find_between
from transformer_kernels.parallel.plan import Between, Border, find


class Block(nn.Module):
    """Layers that are split, and behind them what ``behind`` computes of x and their sums."""

    def __init__(self, behind: Callable[[Block, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm, self.scale = nn.LayerNorm(8), nn.Parameter(torch.ones(8))
        self.fold, self.behind = nn.Flatten(0, 1), behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self, x, self.down(self.up(x).relu()))


def _between(behind: Callable[[Block, Tensor, Tensor], Tensor]) -> Between:
    model = nn.Sequential(nn.Identity(), Block(behind), nn.Tanh())
    trace = record(model, (torch.randn(2, 6, 8),), {})
    return find_between(model, trace, find(model, trace).groups)


INTO, OUT = Border("1", (0,), gathers=False, forks=True), Border("2", (), gathers=True, forks=True)
GATHERED = Border("1.up", (0,), gathers=True, group=0)
NORMS = (("1.norm", "weight"), ("1.norm", "bias"))


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        (lambda m, x, y: m.norm(x + y), ((INTO, GATHERED, OUT), NORMS)),
        # x / 2 is split where it is made, since x is, and not once more where it is added.
        (lambda m, x, y: m.norm(y + x / 2) + x, ((INTO, GATHERED, OUT), NORMS)),
        (lambda m, x, y: x + (1 + m.scale) * y, ((INTO, GATHERED, OUT), (("1", "scale"),))),
        # A mean over the tokens takes all of them, and no module begins before it.
        (lambda m, x, y: m.norm(x + y) - y.mean(1, keepdim=True), ((), ())),
        # The gradient of a scale that is read whole as well would be summed over ranks twice.
        (lambda m, x, y: m.scale * x.mean(1, keepdim=True) + m.scale * y, ((), ())),
    ],
)  # fmt: skip
def test_borders(
    behind: Callable[[Block, Tensor, Tensor], Tensor],
    expected: tuple[tuple[Border, ...], tuple[tuple[str, str], ...]],
) -> None:
    found = _between(behind)
    assert (found.borders, found.parameters) == expected
    assert found.rows == (("1.down",) if expected[0] else ())


def test_an_obstacle_is_named() -> None:
    """An operation that puts the tokens of all samples into one dimension, as in OPT's layers; in a
    module of its own it gets all tokens."""
    found = _between(lambda _, x, y: (x + y).reshape(-1, 8).relu().view(x.shape))
    assert (found.rows, found.obstacle) == ((), "reshape in 1")
    found = _between(lambda m, x, y: m.fold(x + y).relu().view(x.shape))
    assert (found.rows, found.obstacle) == (("1.down",), "")
