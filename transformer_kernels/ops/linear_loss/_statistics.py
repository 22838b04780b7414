# SPDX-License-Identifier: MIT
"""Entropy and accuracy of rows of logits: as formulas, and in pieces of a chunk.

    p = softmax(z)        m = sum(p z)        entropy = log(sum(exp(z))) - m
    the entropy's gradient at z is p (m - z)

``z`` are capped logits relative to the largest of their row, so that both terms of the entropy are
positive. A row that is ignored has an entropy and an accuracy of 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..._torch import log_softmax
from .._dtype import accumulate_dtype
from ..loss._formula import MEAN, NONE

# Bytes of a piece in the arithmetic's dtype, of which two are in memory at a time: on a CPU they
# stay in the cache.
_CPU_BYTES, _OTHER_BYTES = 1 << 20, 64 << 20


# ---- formulas -----------------------------------------------------------------------------------


def entropy_of(logits: Tensor, counted: Tensor, softcap: float) -> Tensor:
    """The entropy of each row in nats, differentiable any number of times."""
    z = logits.to(accumulate_dtype(logits)).masked_fill(~counted.unsqueeze(-1), 0.0)
    z = softcap * torch.tanh(z / softcap) if softcap > 0 else z
    log_p = log_softmax(z, -1)
    entropy = -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(-1)
    return entropy.masked_fill(~counted, 0.0)


def accuracy_of(logits: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """1 for each row whose first largest logit is the target's, 0 for others; no gradient."""
    hits = (logits.detach().argmax(-1) == target) & counted
    return hits.to(accumulate_dtype(logits))


def reduced(of_rows: Tensor, counted: Tensor, reduction: int) -> Tensor:
    """Sums a number of each row, or divides the sum by the number of rows that are counted."""
    if reduction == NONE:
        return of_rows
    total = of_rows.sum()
    return total / counted.sum() if reduction == MEAN else total


def gains_of_rows(gain: Tensor | None, counted: Tensor, reduction: int, like: Tensor) -> Tensor:
    """The gradient that arrives at each row of a statistic, from that of its reduction."""
    if gain is None:
        return torch.zeros_like(like)
    gain = gain.to(like.dtype)
    if reduction == NONE:
        return gain.reshape(like.shape)
    return (gain / counted.sum() if reduction == MEAN else gain).expand_as(like)


# ---- pieces -------------------------------------------------------------------------------------


def _pieces(logits: Tensor) -> Iterator[slice]:
    most = _CPU_BYTES if logits.is_cpu else _OTHER_BYTES
    row = logits.shape[-1] * accumulate_dtype(logits).itemsize
    step = max(1, most // max(row, 1))
    return (slice(i, i + step) for i in range(0, len(logits), step))


def _relative(logits: Tensor, softcap: float) -> tuple[Tensor, Tensor | None]:
    """Capped logits relative to the largest of their row; and the cap's slope, where there is
    one."""
    wide = logits.to(accumulate_dtype(logits))
    slope = None
    if softcap > 0:
        wide = torch.tanh(wide / softcap)
        slope = 1 - wide.square()
        wide = softcap * wide
    top = wide.amax(-1, keepdim=True)
    return wide - top.masked_fill_(top == -torch.inf, 0.0), slope


def _powers(z: Tensor) -> tuple[Tensor, Tensor]:
    """The exponentials of relative logits, which become finite, and their sums."""
    powers = z.exp()
    z.clamp_(min=torch.finfo(z.dtype).min)  # 0 times -inf is 0 here
    return powers, powers.sum(-1, keepdim=True)


def write_entropy(logits: Tensor, softcap: float, out: Tensor) -> None:
    """Writes the entropy of each row, whether it is ignored or not."""
    for piece in _pieces(logits):
        z, _ = _relative(logits[piece], softcap)
        powers, sums = _powers(z)
        mean = powers.mul_(z).sum(-1, keepdim=True) / sums
        out[piece] = (sums.log() - mean).squeeze(-1)


def write_accuracy(logits: Tensor, target: Tensor, counted: Tensor, out: Tensor) -> None:
    """Writes the accuracy of each row. PyTorch finds the largest of 16-bit numbers slowly, so a
    piece is cast first."""
    for piece in _pieces(logits):
        wide = logits[piece].to(out.dtype)
        out[piece] = accuracy_of(wide, target[piece], counted[piece])


def add_entropy_gradient(
    dlogits: Tensor, logits: Tensor, gains: Tensor, counted: Tensor, softcap: float
) -> None:
    """Adds the gradient of ``sum(gains * entropy)`` at the logits to ``dlogits``, which is rounded
    once more."""
    for piece in _pieces(logits):
        z, slope = _relative(logits[piece], softcap)
        powers, sums = _powers(z)
        mean = (powers * z).sum(-1, keepdim=True) / sums
        dz = z.sub_(mean).mul_(powers.mul_(-gains[piece].unsqueeze(-1) / sums))
        dz = dz if slope is None else dz.mul_(slope)
        dz.masked_fill_(~counted[piece].unsqueeze(-1), 0.0)
        dlogits[piece] = dz.add_(dlogits[piece].to(dz.dtype))
