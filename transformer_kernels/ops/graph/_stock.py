# SPDX-License-Identifier: MIT
"""The graph ops in PyTorch's own calls, as models write them: a row for each edge, and
``index_add`` or ``scatter_reduce`` into the targets. ``targets`` may be given, which models have at
hand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._formula import MAX, MEAN


def targets_of(offsets: Tensor, edges: int) -> Tensor:
    """The segment of each edge."""
    segments = torch.arange(len(offsets) - 1, device=offsets.device)
    return segments.repeat_interleave(offsets.diff(), output_size=edges)


def reduced(rows: Tensor, targets: Tensor, count: int, reduce: int = 0) -> Tensor:
    """Reduces (E, C) to (count, C): the sum, mean or maximum of each target's rows, 0 without
    any."""
    zeros = rows.new_zeros(count, rows.shape[1])
    if reduce == MAX:
        index = targets.long().unsqueeze(1).expand_as(rows)
        return zeros.scatter_reduce(0, index, rows, "amax", include_self=False)
    sums = zeros.index_add(0, targets, rows)
    if reduce != MEAN:
        return sums
    counts = torch.bincount(targets, minlength=count).clamp(min=1)
    return sums / counts.unsqueeze(1).to(sums.dtype)


def _by_edge(weight: Tensor, order: Tensor | None, cols: int) -> Tensor:
    """Expands (E, H) to (E, C), or to (E, 1) where H is 1, in the order of the targets."""
    weight = weight if order is None else weight[order.long()]
    heads = weight.shape[1]
    return weight if heads == 1 else weight.repeat_interleave(cols // heads, 1)


def gather_reduce(
    x: Tensor, offsets: Tensor, indices: Tensor | None, order: Tensor | None,
    back_offsets: Any, back_indices: Any, back_order: Any,  # noqa: ARG001
    weight: Tensor | None, reduce: int, targets: Tensor | None = None,
) -> Tensor:  # fmt: skip
    sources = indices if indices is not None else order
    messages = x if sources is None else x[sources]
    if weight is not None:
        messages = messages * _by_edge(weight, order, x.shape[1])
    targets = targets_of(offsets, len(messages)) if targets is None else targets
    return reduced(messages, targets, len(offsets) - 1, reduce)


def edge_dot(
    a: Tensor, b: Tensor, offsets: Tensor, indices: Tensor, order: Tensor | None,
    back_offsets: Any, back_indices: Any, back_order: Any, heads: int,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    targets = targets_of(offsets, len(indices))
    y = (a[targets] * b[indices]).unflatten(1, (heads, -1)).sum(-1)
    return y if order is None else torch.zeros_like(y).index_copy(0, order.long(), y)


def segment_softmax(
    x: Tensor, offsets: Tensor, order: Tensor | None, targets: Tensor | None = None
) -> Tensor:
    rows = x if order is None else x[order.long()]
    targets = targets_of(offsets, len(x)) if targets is None else targets
    top = reduced(rows.detach(), targets, len(offsets) - 1, MAX)
    powers = (rows - top[targets]).exp()
    sums = torch.zeros_like(top).index_add(0, targets, powers)
    y = powers / sums[targets]
    return y if order is None else torch.zeros_like(y).index_copy(0, order.long(), y)
