# SPDX-License-Identifier: MIT
"""The filters of sampling by sorts, in float64, and tests of counts."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def chi_square_passes(counts: Tensor, probabilities: Tensor) -> bool:
    """Whether counts of draws fit the probabilities; false alarms are rarer than 1e-8.

    Tokens that are expected fewer than 10 times count as one. The bound is that of Wilson and
    Hilferty (1931) at 6 standard deviations.
    """
    expected = probabilities.double() * counts.sum()
    if bool((counts[expected == 0] > 0).any()):
        return False
    rare = expected < 10
    found = torch.cat([counts[~rare].double(), counts[rare].sum(0, keepdim=True).double()])
    wanted = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    if wanted[-1] < 10:  # too few to say anything of
        found, wanted = found[:-1], wanted[:-1]
    free = max(len(wanted) - 1, 1)
    statistic = ((found - wanted) ** 2 / wanted).sum().item()
    spread = 2 / (9 * free)
    return statistic <= free * (1 - spread + 6 * math.sqrt(spread)) ** 3


def _mass_kept(order: Tensor, shares: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Tokens that are kept, in falling order, where those before have less than p; and the rows in
    which rounding cannot change that."""
    ordered, places = order.sort(dim=1, descending=True)
    taken = shares.gather(1, places)
    before = taken.cumsum(1) - taken
    count = (before < p).sum(1, keepdim=True).clamp(min=1)
    last = ordered.gather(1, count - 1)
    gap = (order - last).abs()
    near = ((gap > 0) & (gap < 1e-4) & (shares > 0)).any(1)
    sure = ((before - p).abs() > 1e-5).all(1) & ~near
    return order >= last, sure


def filtered(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None, min_p: float | None = None, typical_p: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The probabilities after all filters (B, V), float64, and which rows rounding cannot
    change."""
    z = logits.double() / temperature
    sure = torch.ones(len(z), dtype=torch.bool)
    if top_k:
        ordered = z.sort(dim=1, descending=True).values
        last = ordered[:, min(top_k, z.shape[1]) - 1, None]
        gap = (z - last).abs()
        sure &= ~((gap > 0) & (gap < 1e-4)).any(1)
        z = z.masked_fill(z < last, -torch.inf)
    if top_p is not None:
        kept, safe = _mass_kept(z, z.softmax(1), top_p)
        z, sure = z.masked_fill(~kept, -torch.inf), sure & safe
    if min_p is not None:
        share = (z - z.amax(1, keepdim=True)).exp()
        sure &= ~((share - min_p).abs() < 1e-5 * min_p).any(1)
        z = z.masked_fill(share < min_p, -torch.inf)
    if typical_p is not None:
        shares, log = z.softmax(1), z.log_softmax(1)
        mean = torch.where(shares > 0, shares * log, 0.0).sum(1, keepdim=True)
        kept, safe = _mass_kept(-(log - mean).abs(), shares, typical_p)
        z, sure = z.masked_fill(~kept, -torch.inf), sure & safe
    return z.softmax(1), sure
