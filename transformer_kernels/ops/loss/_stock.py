# SPDX-License-Identifier: MIT
"""Cross-entropy in PyTorch's own calls; the soft cap and the z-loss are written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _torch
from .._dtype import accumulate_dtype
from ._formula import MEAN, NONE, counted_labels

REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    x: Tensor, target: Tensor | None, probabilities: Tensor | None, weight: Tensor | None,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int,
    wide: bool,
) -> Tensor:  # fmt: skip
    z = x.to(accumulate_dtype(x)) if wide else x
    z = softcap * (z / softcap).tanh() if softcap > 0 else z
    many = z.dim() > 2
    rows = z.flatten(0, -2) if many else z
    options: dict[str, Any] = {"reduction": REDUCTIONS[reduction]}
    if target is not None:
        labels = target.long().flatten() if many else target.long()
        options["ignore_index"] = ignore_index
    else:
        assert probabilities is not None
        labels = probabilities.to(z.dtype)
        labels = labels.flatten(0, -2) if many else labels
    of_classes = None if weight is None else weight.to(z.dtype)
    loss = _torch.cross_entropy(
        rows, labels, of_classes, label_smoothing=label_smoothing, **options
    )
    if z_loss:
        loss = loss + z_loss * _squares(rows, target, weight, ignore_index, reduction)
    return loss.view(x.shape[:-1]) if many and reduction == NONE else loss


def _squares(
    z: Tensor, target: Tensor | None, weight: Tensor | None, ignore_index: int, reduction: int
) -> Tensor:
    """The squares of the rows' log-sum-exps, reduced as the loss is."""
    squares = z.logsumexp(-1).square()
    counted = torch.ones_like(squares)
    if target is not None:
        labels = target.view(squares.shape)
        counted = counted_labels(labels, z.shape[-1], weight, ignore_index, squares.dtype)
    squares = squares.masked_fill(counted == 0, 0.0) * counted
    if reduction == NONE:
        return squares
    return squares.sum() / counted.sum() if reduction == MEAN else squares.sum()
