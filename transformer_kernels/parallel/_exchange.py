# SPDX-License-Identifier: MIT
"""An all-to-all with a gradient: each rank sends some of its rows to each other one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ._ranks import Ranks

Counts = Sequence[int] | None  # rows for each rank; None for equal parts


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, sent: Counts, received: Counts) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        rows = len(x) if received is None else sum(received)
        y = x.new_empty(rows, *x.shape[1:])
        dist.all_to_all_single(y, x.contiguous(), received, sent, group)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _Exchange.apply(dy, ctx.group, ctx.received, ctx.sent), None, None, None


def exchanged(x: Tensor, ranks: Ranks, sent: Counts = None, received: Counts = None) -> Tensor:
    """Sends the rows of x, those for rank 0 first; returns those that were sent here, those of rank
    0 first."""
    if ranks.size == 1:
        return x
    y: Tensor = _Exchange.apply(x, ranks.group, sent, received)
    return y
