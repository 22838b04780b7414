# SPDX-License-Identifier: MIT
"""Shows the levels as a table, and the kernels that ran in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformer_kernels.bench.levels.run import PASSES
from transformer_kernels.levels import LEVELS
from transformer_kernels.measure.schema import LevelPass, LevelRow, Result
from transformer_kernels.measure.sweeps import shape_text
from transformer_kernels.measure.table import ABSENT, PASS_WORDS, Table, short_dtype, skipped_lines
from transformer_kernels.measure.watch import by_name

_TITLE = "ONE TRANSFORMER BLOCK IN FIVE LEVELS"
_HIDDEN = "hidden"
_UNTIMED = "not timed"
_COUNTED = ("forward", "both")


def render(result: Result) -> str:
    return str(lay_out(result))


def lay_out(result: Result) -> Table:
    """A table with a line per level, of measured figures only."""
    title = f"{_TITLE} ({result.machine.device_name})"
    if not result.levels:
        return Table(title, "", [("Level", 20)], [])
    first = result.levels[0]
    shape = f"{shape_text(first.shape)}, {first.heads} heads{', causal' if first.causal else ''}"
    subtitle = (
        f"{short_dtype(first.dtype)} {shape}; microseconds, median ± half of the 10th to the 90th"
        f" percentile; counts: {' / '.join(PASS_WORDS[pass_] for pass_ in _COUNTED)}"
    )
    things = "kernels" if result.machine.device == "cuda" else "operators"
    headings = [("Level", 16), *((pass_, 12) for pass_ in PASSES), (things, 9),
                ("MB moved", 9), ("MB at peak", 10), ("error", 7)]  # fmt: skip
    return Table(title, subtitle, headings, [_cells(row) for row in result.levels])


def lines(result: Result) -> list[str]:
    """Lines below the table: notes, absent levels, and the kernels by name."""
    found = [f"{row.level}: {row.note}" for row in result.levels if row.note is not None]
    found += skipped_lines(result)
    for row in result.levels:
        counted = row.count_of("both")
        if counted is not None and counted.kernels is not None:
            names = by_name(counted.kernels).items()
            ran = ", ".join(name if count == 1 else f"{count} {name}" for name, count in names)
            found.append(f"{row.level} ran, forward and backward: {ran}")
    return found


def _cells(row: LevelRow) -> list[str]:
    level = LEVELS[row.level]
    number = list(LEVELS).index(row.level) + 1
    counts = [counted for pass_ in _COUNTED if (counted := row.count_of(pass_)) is not None]
    return [
        f"{number} {level.title}",
        *(_time(row.time_of(pass_)) for pass_ in PASSES),
        _both([counted.launches for counted in counts], str),
        _both([counted.bytes for counted in counts], _mega),
        _both([counted.peak_bytes for counted in counts], _mega),
        f"{row.error:.1e}",
    ]


def _time(timed: LevelPass | None) -> str:
    if timed is None:
        return _UNTIMED
    spread = 50 * (timed.p90_us - timed.p10_us) / timed.median_us
    median = f"{timed.median_us:.0f}" if timed.median_us >= 1000 else f"{timed.median_us:.1f}"
    return f"{median} ±{spread:.0f} %"


def _mega(count: int) -> str:
    value = count / 1e6
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _both(values: Sequence[int | None], form: Callable[[int], str]) -> str:
    """The figures of both passes, such as "3 / 7"."""
    if not values:
        return ABSENT
    known = [value for value in values if value is not None]
    return _HIDDEN if len(known) < len(values) else " / ".join(map(form, known))
