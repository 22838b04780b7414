# SPDX-License-Identifier: MIT
"""Cross-entropy of a linear layer whose classes are split between processes.

Each process computes the logits of its own classes, in chunks of rows as ever. What it observed of
all rows is merged at once, between the passes over its chunks: chunks need not be alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._declare import Op
from .._declare_arguments import Given
from .._parallel import Part, Run
from ..loss._ops import CROSS_ENTROPY
from ..loss._split import Columns, Merged, passes_of, refuse_derivative
from ._chunks import Gradients, Needed, RowChunks, as_pass

_OP = "linear_cross_entropy"
# The logits and their gradient are in memory. Both passes have the same chunks: a product of fewer
# rows may round differently, and a softmax by another pass's sums would not add up to 1.
_COPIES = 2


@as_pass
def _observed(given: Given, columns: Columns) -> Tensor:
    """The statistics of all rows, (4, N)."""
    if not columns.classes:
        return columns.observe(given["x"].reshape(-1, given["x"].shape[-1]), None)
    chunks = RowChunks(given, _COPIES).chunks()
    found = [columns.observe(logits, None, part) for part, logits in chunks]
    return torch.cat(found, 1) if found else columns.counted.new_empty(4, 0)


@as_pass
def _gradients(
    given: Given, columns: Columns, gains: Tensor, merged: Merged, needed: Needed
) -> tuple[Tensor | None, ...]:
    if not columns.classes:
        operands = (given[name] for name in ("x", "linear_weight", "linear_bias"))
        return tuple(None if x is None else torch.zeros_like(x) for x in operands)
    rows = RowChunks(given, _COPIES)
    gradients = Gradients(given, rows, needed)
    for part, logits in rows.chunks():
        dlogits = columns.gradient(logits, None, gains, merged, part)
        if rows.products.columns > logits.shape[1]:
            dlogits = logits.copy_(dlogits)
        gradients.add(part, dlogits)
    return gradients.results()


class _ByClasses(torch.autograd.Function):
    """The loss of each row, from x and this process's classes of the layer."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, columns: Columns
    ) -> Tensor:
        operands = {"x": x, "linear_weight": weight, "linear_bias": bias}
        loss, merged = columns.merged(_observed({**columns.given, **operands}, columns))
        ctx.save_for_backward(x, weight, bias, *merged)
        ctx.columns = columns
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        refuse_derivative(_OP)
        x, weight, bias, *saved = ctx.saved_tensors
        operands = {"x": x, "linear_weight": weight, "linear_bias": bias}
        given = {**ctx.columns.given, **operands}
        *needed, _ = ctx.needs_input_grad
        found = _gradients(given, ctx.columns, dloss.contiguous(), Merged(*saved), tuple(needed))
        return *(each if need else None for each, need in zip(found, needed, strict=True)), None


def by_classes(op: Op, part: Part, call: Run, given: Given) -> tuple[Tensor, ...]:  # noqa: ARG001
    """The loss of a process's classes of the layer, with the others'; no statistics."""
    x, weight, bias = (given[name] for name in ("x", "linear_weight", "linear_bias"))
    passes = passes_of(CROSS_ENTROPY, part.backend, x)
    columns = Columns(op.title, given, part, len(weight), passes)
    loss = columns.reduced(_ByClasses.apply(x, weight, bias, columns))
    nothing = columns.counted.new_empty(0)
    return loss, nothing, nothing
