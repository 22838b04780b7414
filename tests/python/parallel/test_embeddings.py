# SPDX-License-Identifier: MIT
"""Which embeddings and parameters are split with the heads that read them: what a recorded run says
about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from transformer_kernels.fuse.record import record
from transformer_kernels.parallel.plan import Group, find

HEADS, SIZE = 4, 8
TIME = HEADS  # no shape says which dimension is which


class Attention(nn.Module):
    """An attention whose scores ``scored`` changes."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, scored: Callable[[Tensor], Tensor]) -> Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:-1], HEADS, SIZE).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = scored(q @ k.transpose(2, 3)).softmax(-1) @ v
        out: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return out


Scored = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """Two attentions, and parameters of which ``scored`` makes something."""

    mask: Tensor

    def __init__(self, scored: Scored, returns: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.table = nn.Embedding(TIME, HEADS)
        self.temperature = nn.Parameter(torch.ones(1))
        self.scale = nn.Parameter(torch.ones(HEADS, 1, 1))
        self.slopes = nn.Buffer(torch.ones(HEADS, 1, 1))
        self.scored, self.returns = scored, returns

    def bias(self) -> Tensor:
        places = torch.arange(TIME)
        found: Tensor = self.table((places[:, None] - places).abs()).permute(2, 0, 1)[None]
        return found

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.mask = x[:, None, None, :, 0] > 0
        for layer in self.layers:
            x = x + layer(x, partial(self.scored, self))
        return (x, self.bias()) if self.returns else (x,)


def _groups(scored: Scored, returns: bool = False) -> tuple[Group, ...]:
    model = Model(scored, returns)
    return find(model, record(model, (torch.randn(2, TIME, HEADS * SIZE),), {})).groups


@pytest.mark.parametrize(
    "scored",
    [
        lambda model, scores: scores + model.bias(),
        lambda model, scores: scores + model.bias().masked_fill(model.mask, -1e9),
        lambda model, scores: scores + torch.where(model.mask, -1e9, model.bias().contiguous()),
    ],
)
def test_a_table_of_heads(scored: Scored) -> None:
    assert [(group.row, group.tables, group.inside) for group in _groups(scored)] == [
        ("layers.0.out", ("table",), ()),
        ("layers.1.out", ("table",), ()),
    ]


@pytest.mark.parametrize(
    ("scored", "returns"),
    [
        (lambda model, scores: scores + model.bias(), True),
        (lambda model, scores: scores + model.bias().softmax(1), False),
        (lambda model, scores: scores + model.bias().mean() * model.bias(), False),
        (lambda model, scores: scores + model.bias() * model.temperature, False),
        (lambda model, scores: scores + model.bias() * model.table.weight.sum(), False),
        (lambda model, scores: scores + model.bias().transpose(1, 2), False),
        (lambda model, scores: scores + model.bias().mT, False),  # which no record has
        (lambda model, scores: scores * model.scale, False),
        (lambda model, scores: scores - model.slopes * torch.arange(TIME), False),
        (lambda _, scores: scores * 0.5 ** torch.arange(HEADS).view(-1, 1, 1), False),
        # The gradient of what an argument changes is not known to be a sum over the ranks.
        (lambda model, scores: scores + model.mask * model.temperature, False),
    ],
)
def test_heads_that_a_rank_has_not_alone(scored: Scored, returns: bool) -> None:
    """Attentions stay whole where numbers of heads are no table's, or others read it as well."""
    assert not _groups(scored, returns)


def test_a_parameter_that_heads_share() -> None:
    groups = _groups(lambda model, scores: scores / model.temperature)
    assert [group.inside for group in groups] == [(("", "temperature"),)] * 2


class Channels(nn.Module):
    """An MLP as wide as what it is given, and a parameter of each channel."""

    def __init__(self, scales: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.scales = scales

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x + torch.arange(8.0)).relu()
        out: Tensor = self.down(y * self.scale if self.scales else y)
        return out


@pytest.mark.parametrize("scales", [False, True])
def test_a_parameter_of_each_channel(scales: bool) -> None:
    model = Channels(scales)
    groups = find(model, record(model, (torch.randn(2, 4, 8),), {})).groups
    assert [group.row for group in groups] == ([] if scales else ["down"])
