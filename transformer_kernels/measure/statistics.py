# SPDX-License-Identifier: MIT
"""Order statistics of a set of timings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Median, spread and mean of a set of times, in microseconds."""

    median: float
    p10: float
    p90: float
    samples: int
    mean: float


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value at `fraction` of an ascending sequence, interpolated between neighbours."""
    if not ordered:
        raise ValueError("quantile: the sequence is empty")
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(samples_us: Sequence[float]) -> Summary:
    ordered = sorted(samples_us)
    return Summary(
        median=quantile(ordered, 0.5),
        p10=quantile(ordered, 0.1),
        p90=quantile(ordered, 0.9),
        samples=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
    )


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))
