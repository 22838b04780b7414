# SPDX-License-Identifier: MIT
"""How well times of sites are predicted from those of operations: one line for each pattern."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from transformer_kernels.measure.schema import PredictedRow, Result
from transformer_kernels.measure.table import ABSENT, Table

LEAST_SAVING = 0.1  # of PyTorch's time; the sign of less may be noise


def error(predicted: float, measured: float) -> float:
    return abs(predicted / measured - 1)


def saving(stock: float, ours: float) -> float:
    """The part of PyTorch's time that ours saves."""
    return 1 - ours / stock


def is_decided(row: PredictedRow) -> bool:
    """Whether the measured times differ by more than noise."""
    return abs(saving(row.stock_us, row.ours_us)) > LEAST_SAVING


def is_right(row: PredictedRow) -> bool:
    """Whether the prediction has the faster code."""
    return (row.predicted_ours_us < row.predicted_stock_us) == (row.ours_us < row.stock_us)


def render(result: Result) -> str:
    return str(lay_out(result))


def lay_out(result: Result) -> Table:
    """Medians of errors, and how often the sign of a saving is right."""
    by_pattern: dict[str, list[PredictedRow]] = {}
    for row in result.predictions:
        by_pattern.setdefault(row.pattern, []).append(row)
    body = [_cells(pattern, rows) for pattern, rows in sorted(by_pattern.items())]
    body.append(_cells("all", result.predictions))
    headings = [("Pattern", 14), ("times", 5), ("stock, median", 13), ("ours, median", 12),
                ("worst", 6), ("faster one right", 16)]  # fmt: skip
    models = {row.model for row in result.predictions}
    subtitle = (
        f"error of predicted times; {len(models)} models, {result.settings['threads']} thread"
    )
    title = f"SITES AS PREDICTED ({result.machine.device_name})"
    return Table(title, subtitle, headings, body)


def _cells(name: str, rows: Sequence[PredictedRow]) -> list[str]:
    stock = [error(row.predicted_stock_us, row.stock_us) for row in rows]
    ours = [error(row.predicted_ours_us, row.ours_us) for row in rows]
    decided = [row for row in rows if is_decided(row)]
    right = sum(map(is_right, decided))
    return [
        name.replace("_", " "),
        str(len(rows)),
        f"{statistics.median(stock):.1%}",
        f"{statistics.median(ours):.1%}",
        f"{max(*stock, *ours):.0%}",
        f"{right} of {len(decided)}" if decided else ABSENT,
    ]
