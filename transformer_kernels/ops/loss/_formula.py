# SPDX-License-Identifier: MIT
"""Cross-entropy in PyTorch operations, differentiable any number of times."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._torch import log_softmax
from .._declare_arguments import Given
from .._dtype import accumulate_dtype

NONE, MEAN, SUM = range(3)  # reductions


def _logits(x: Tensor, target: Tensor | None, ignore_index: int, softcap: float) -> Tensor:
    """Capped logits. Ignored rows leave the graph, so that no NaN of theirs reaches a gradient."""
    z = x.to(accumulate_dtype(x))
    if target is not None:
        z = z.masked_fill((target == ignore_index).unsqueeze(-1), 0.0)
    return softcap * torch.tanh(z / softcap) if softcap > 0 else z


def _labels(target: Tensor, classes: int) -> Tensor:
    """The label of each row; 0 where the label is no class."""
    return torch.where((target >= 0) & (target < classes), target, 0).long()


def _counted(x: Tensor, target: Tensor | None, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The weight of each row in the mean."""
    dtype = accumulate_dtype(x)
    if target is None:
        return torch.ones(x.shape[:-1], dtype=dtype, device=x.device)
    return counted_labels(target, x.shape[-1], weight, ignore_index, dtype)


def counted_labels(
    target: Tensor, classes: int, weight: Tensor | None, ignore_index: int, dtype: torch.dtype
) -> Tensor:
    """The weight of each label: 0 where it is ignored, NaN where it is no class."""
    counted = torch.ones(target.shape, dtype=dtype, device=target.device)
    if weight is not None:
        counted = weight.to(dtype)[_labels(target, classes)]
    counted = torch.where((target >= 0) & (target < classes), counted, torch.nan)
    return torch.where(target == ignore_index, 0.0, counted)


def forward(
    x: Tensor, target: Tensor | None, probabilities: Tensor | None, weight: Tensor | None,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int,
    wide: bool,
) -> Tensor:  # fmt: skip
    classes = x.shape[-1]
    z = _logits(x, target, ignore_index, softcap)
    surprise = -log_softmax(z, -1)
    counted = _counted(x, target, weight, ignore_index)
    own = 1 - label_smoothing
    if target is not None:
        of_label = surprise.gather(-1, _labels(target, classes).unsqueeze(-1)).squeeze(-1)
        loss = own * counted * of_label
    else:
        assert probabilities is not None
        loss = own * _weighted(surprise * probabilities.to(z.dtype), weight)
    if label_smoothing > 0:
        smooth = label_smoothing / classes * _weighted(surprise, weight)
        loss = loss + (smooth if target is None else smooth * (target != ignore_index))
    if z_loss != 0:
        loss = loss + z_loss * counted * torch.logsumexp(z, -1).square()
    if reduction != NONE:
        loss = loss.sum()
    if reduction == MEAN:
        loss = loss / counted.sum()
    return loss if wide else loss.to(x.dtype)


def _weighted(columns: Tensor, weight: Tensor | None) -> Tensor:
    return (columns if weight is None else columns * weight.to(columns.dtype)).sum(-1)


def _shares(
    x: Tensor, target: Tensor | None, probabilities: Tensor | None, weight: Tensor | None,
    ignore_index: int, label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The coefficient of each logit in the loss: a of the declaration."""
    classes, dtype = x.shape[-1], accumulate_dtype(x)
    if target is None:
        assert probabilities is not None
        share = label_smoothing / classes + (1 - label_smoothing) * probabilities.to(dtype)
    else:
        column = torch.arange(classes, device=x.device)
        own = (column == target.unsqueeze(-1)).to(dtype)
        share = label_smoothing / classes + (1 - label_smoothing) * own
    if weight is not None:
        share = share * weight.to(dtype)
    if target is not None:
        no_class = _counted(x, target, None, ignore_index).isnan()
        share = share.masked_fill((target == ignore_index).unsqueeze(-1), 0.0)
        share = share.masked_fill(no_class.unsqueeze(-1), torch.nan)
    return share


def statistics(values: Given) -> tuple[Tensor, ...]:
    """The largest logit of each row, the log-sum-exp relative to it, the sum of its coefficients,
    and the total weight of rows."""
    x, target = values["x"], values["target"]
    ignore_index = values["ignore_index"]
    shares = _shares(
        x, target, values["probabilities"], values["weight"], ignore_index,
        values["label_smoothing"],
    ).sum(-1)  # fmt: skip
    z = _logits(x, target, ignore_index, values["softcap"])
    top = z.detach().amax(-1)
    base = torch.where(top == -torch.inf, 0.0, top)
    spread = (z - base.unsqueeze(-1)).exp().sum(-1).log()
    if target is not None:
        spread = torch.where(target == ignore_index, 0.0, spread)
    if values["reduction"] != MEAN:
        return top, spread, shares, x.new_empty(0)
    return top, spread, shares, _counted(x, target, values["weight"], ignore_index).sum()


def _gain(dloss: Tensor, total: Tensor, dtype: torch.dtype, reduction: int) -> Tensor:
    """The gradient of each row's loss, or of all rows' losses."""
    gain = dloss.to(dtype)
    return gain / total if reduction == MEAN else gain


def backward(
    dloss: Tensor, x: Tensor, target: Tensor | None, probabilities: Tensor | None,
    weight: Tensor | None, top: Tensor, spread: Tensor, share: Tensor, total: Tensor,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int,
) -> Tensor:  # fmt: skip
    """The gradient of ``x``, as a formula that can be differentiated again."""
    z = _logits(x, target, ignore_index, softcap)
    counted = _counted(x, target, weight, ignore_index).unsqueeze(-1)
    shares = _shares(x, target, probabilities, weight, ignore_index, label_smoothing)
    top, spread, share = (of_row.unsqueeze(-1) for of_row in (top, spread, share))
    power = share + 2 * z_loss * counted * (top + spread)
    gain = _gain(dloss, total, z.dtype, reduction)
    dz = (power * (z - top - spread).exp() - shares) * gain.unsqueeze(-1)
    if target is not None:
        dz = dz.masked_fill((target == ignore_index).unsqueeze(-1), 0.0)
    if softcap > 0:
        dz = dz * (1 - (z / softcap).square())
    return dz.to(x.dtype).contiguous()


def gradient_of_probabilities(values: Given) -> Tensor:
    q, x, weight = values["probabilities"], values["x"], values["weight"]
    z = _logits(x, None, 0, values["softcap"])
    gain = _gain(values["dloss"], values["total"], z.dtype, values["reduction"])
    lse = (values["top"] + values["spread"]).unsqueeze(-1)
    dq = (1 - values["label_smoothing"]) * gain.unsqueeze(-1) * (lse - z)
    dq = dq if weight is None else dq * weight.to(z.dtype)
    return dq.to(q.dtype)
