# SPDX-License-Identifier: MIT
"""Compares two result files row by row: same, faster, slower or ambiguous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from transformer_kernels.measure import table
from transformer_kernels.measure.schema import Result, Row

DEFAULT_TOLERANCE = 0.05


class Verdict(str, Enum):
    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    AMBIGUOUS = "ambiguous"  # the medians differ, but the spreads overlap
    MISSING = "missing"  # only in the first file
    NEW = "new"  # only in the second


@dataclass(frozen=True)
class Comparison:
    before: Row | None
    after: Row | None
    verdict: Verdict

    @property
    def row(self) -> Row:
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def ratio(self) -> float | None:
        """The time after, divided by the time before."""
        if self.before is None or self.after is None:
            return None
        return self.after.median_us / self.before.median_us


def judge(before: Row, after: Row, tolerance: float = DEFAULT_TOLERANCE) -> Verdict:
    ratio = after.median_us / before.median_us
    if max(ratio, 1 / ratio) <= 1 + tolerance:
        return Verdict.SAME
    if before.p10_us <= after.p90_us and after.p10_us <= before.p90_us:
        return Verdict.AMBIGUOUS
    return Verdict.SLOWER if ratio > 1 else Verdict.FASTER


def compare(
    before: Result,
    after: Result,
    tolerance: float = DEFAULT_TOLERANCE,
    providers: Sequence[str] = ("ours",),
    by_ceiling: bool = False,
) -> list[Comparison]:
    """Compares the rows of two results. With `by_ceiling`, times are in units of the same run's
    copy, which drifts with the machine as they do."""
    old = _by_key(before.rows, providers, by_ceiling)
    new = _by_key(after.rows, providers, by_ceiling)
    comparisons = []
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if a is not None and b is not None:
            verdict = judge(a, b, tolerance)
        else:
            verdict = Verdict.MISSING if b is None else Verdict.NEW
        comparisons.append(Comparison(a, b, verdict))
    return comparisons


def has_regression(comparisons: Iterable[Comparison]) -> bool:
    return any(c.verdict is Verdict.SLOWER for c in comparisons)


def _by_key(
    rows: Iterable[Row], providers: Sequence[str], by_ceiling: bool
) -> dict[tuple[object, ...], Row]:
    chosen = [row for row in rows if row.provider in providers]
    if by_ceiling:
        chosen = [_in_copies(row) for row in chosen if row.pct_copy is not None]
    return {(*row.problem, row.provider, row.outputs): row for row in chosen}


def _in_copies(row: Row) -> Row:
    assert row.pct_copy is not None
    scale = 100 / row.pct_copy / row.median_us
    return replace(
        row,
        median_us=row.median_us * scale,
        p10_us=row.p10_us * scale,
        p90_us=row.p90_us * scale,
    )


def render(comparisons: Sequence[Comparison], by_ceiling: bool) -> str:
    """A line for each row of either result."""
    headings = [("Kernel", 31), ("provider", 8), ("before", 8), ("after", 8), ("ratio", 6),
                ("verdict", 9)]  # fmt: skip
    figures = "time in copies of as many bytes" if by_ceiling else "microseconds, median"
    body = [
        [
            table.label(c.row),
            c.row.provider,
            f"{c.before.median_us:.2f}" if c.before else table.ABSENT,
            f"{c.after.median_us:.2f}" if c.after else table.ABSENT,
            f"{c.ratio:.3f}" if c.ratio else table.ABSENT,
            c.verdict.value,
        ]
        for c in comparisons
    ]
    return table.box("COMPARISON", figures, headings, body)
