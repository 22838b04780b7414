# SPDX-License-Identifier: MIT
"""Tables of ladders: of this run, and of stored runs on other machines."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

from . import counters
from .rungs import TUTORIALS, Line, rungs

RESULTS = TUTORIALS / "results"
NOT_MEASURED = "not measured yet"
_KINDS = ("cpu", "cuda")
_PROFILE = ("Counts of PyTorch's profiler and of autograd's hooks", "one step")
_COUNTERS = {
    counters.FILE: ("Counters of Nsight Compute", "one launch"),
    "profile_cpu.json": _PROFILE,
    "profile_cuda.json": _PROFILE,
}
_BAR = 40  # characters for 100 %
_HEADINGS = ("rung", "time", "rate", "of ceiling", "error", "")
_REQUEST = re.compile(r"<!-- ladder -->\n.*?<!-- /ladder -->", re.DOTALL)
_REMARK = re.compile(r"^<!-- .* -->\n", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Ladder:
    """The lines of one kind of rung on one machine: step by step, in the order of the rungs."""

    machine: str
    date: str
    lines: dict[str, list[Line]]


def stored(kind: str, folder: Path = RESULTS) -> Ladder | None:
    """The stored run of the rungs for CPUs (``cpu``) or for CUDA (``cuda``)."""
    path = folder / f"{kind}.json"
    if not path.is_file():
        return None
    read = json.loads(path.read_text())
    lines = {step: [Line(**line) for line in of] for step, of in read["lines"].items()}
    return Ladder(read["machine"], read["date"], lines)


def store(ladder: Ladder, kind: str, folder: Path = RESULTS) -> None:
    """Keeps lines that were measured, beside those of other steps of the same machine."""
    folder.mkdir(parents=True, exist_ok=True)
    before = stored(kind, folder)
    if before is not None and before.machine == ladder.machine:
        ladder = dataclasses.replace(ladder, lines=before.lines | ladder.lines)
    lines = {step: [_without_defaults(line) for line in of] for step, of in ladder.lines.items()}
    kept = {"machine": ladder.machine, "date": ladder.date, "lines": lines}
    (folder / f"{kind}.json").write_text(json.dumps(kept, indent=1) + "\n")


def _without_defaults(line: Line) -> dict[str, object]:
    fields = dataclasses.fields(Line)
    return {f.name: v for f in fields if (v := getattr(line, f.name)) != f.default}


def table(lines: Sequence[Line]) -> str:
    """A line for each rung; a bar shows the share of the ceiling."""
    rows = [_HEADINGS, *map(_cells, _with_common_ceilings(lines))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    return "\n".join(_joined(row, widths) for row in rows)


def _with_common_ceilings(lines: Sequence[Line]) -> list[Line]:
    """Gives the rungs of a CPU that solve one problem the fastest ceiling that they measured.

    Other programs make a ceiling slower, as they do a rung. A GPU's ceilings differ by the unit
    that multiplies, and stay.
    """
    least: dict[str, float] = {}
    for line in filter(_has_ceiling, lines):
        us = line.us * line.of_ceiling / 100
        least[line.problem] = min(us, least.get(line.problem, us))
    return [
        dataclasses.replace(line, of_ceiling=100 * least[line.problem] / line.us)
        if _has_ceiling(line) else line
        for line in lines
    ]  # fmt: skip


def _has_ceiling(line: Line) -> bool:
    return line.device == "CPU" and not line.why_absent


def _cells(line: Line) -> tuple[str, ...]:
    if line.why_absent:
        return (line.rung, "-", "-", "-", "-", line.why_absent)
    time = f"{line.us / 1e3:.2f} ms" if line.us >= 1e4 else f"{line.us:.1f} us"
    bar = "█" * max(1, round(min(line.of_ceiling, 110) * _BAR / 100))
    return (line.rung, time, _rate(line), f"{line.of_ceiling:.1f} %", f"{line.error:.1e}", bar)


def _rate(line: Line) -> str:
    if line.unit == "GFLOP/s" and line.rate >= 1e3:
        return f"{line.rate / 1e3:.1f} TFLOP/s"
    return f"{line.rate:.1f} {line.unit}"


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others, last = row
    middle = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False)]
    return "  ".join([f"{first:<{widths[0]}}", *middle, last]).rstrip()


def with_stored(lines: Sequence[Line], ladder: Ladder | None, step: str) -> tuple[list[Line], str]:
    """Lines of this machine, and in place of those it cannot run the stored ones; a note says so.

    Args:
        lines: of one kind.
        ladder: the stored run of that kind.
        step: the name of the step.
    """
    kept = {line.rung: line for line in ladder.lines.get(step, [])} if ladder else {}
    absent = [line for line in lines if line.why_absent and not line.failed]
    if not absent:
        return list(lines), ""
    reasons = "; ".join(sorted({line.why_absent for line in absent}))
    taken = [_instead(line, kept) for line in lines]
    if ladder is None or not any(line.rung in kept for line in absent):
        return taken, f"{reasons}; these rungs are {NOT_MEASURED}."
    return taken, f"{reasons}; their lines are stored results of {ladder.machine} ({ladder.date})."


def _instead(line: Line, kept: dict[str, Line]) -> Line:
    if not line.why_absent or line.failed:
        return line
    return kept.get(line.rung, dataclasses.replace(line, why_absent=NOT_MEASURED))


def stored_table(step: Path, folder: Path = RESULTS) -> str:
    """The tables of both kinds from stored runs, as the text of a step shows them."""
    parts = [_stored_part(step, kind, stored(kind, folder)) for kind in _KINDS]
    return "".join([*parts, counters_table(step, folder)])


def _stored_part(step: Path, kind: str, ladder: Ladder | None) -> str:
    measured = ladder.lines.get(step.name, []) if ladder else []
    names = [rung.name for rung in rungs(step, (kind,))]
    if not names:
        return ""
    kept = {line.rung: line for line in measured}
    lines = [kept.get(name, Line(name, why_absent=NOT_MEASURED)) for name in names]
    text = f"```text\n{table(lines)}\n```\n\n"
    if ladder is None or not measured:
        return text
    problems = "; ".join(sorted({line.problem for line in measured}))
    return f"{text}Measured on {ladder.date} on {ladder.machine}: {problems}.\n\n"


def counters_table(step: Path, folder: Path = RESULTS) -> str:
    """Shows what profilers counted in each rung, from the files of `_COUNTERS` that exist."""
    return "".join(_counted(step, folder / file, *who) for file, who in _COUNTERS.items())


def _counted(step: Path, path: Path, tool: str, run: str) -> str:
    read = json.loads(path.read_text()) if path.is_file() else {"steps": {}}
    of = read["steps"].get(step.name)
    if not of:
        return ""
    names = list(next(iter(of.values())))
    lines = [f"| rung | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    lines += [f"| {rung} | {' | '.join(map(_count, row.values()))} |" for rung, row in of.items()]
    where = f"{tool}, {read['date']}, {read['machine']}, {run}."
    return "\n".join([*lines, "", where, "", ""])


def _count(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def text(step: Path) -> tuple[str, str]:
    """The text of a step before and after its tables, as a terminal shows it."""
    before, after = _REQUEST.split((step / "README.md").read_text())
    return _REMARK.sub("", before), _REMARK.sub("", after)


def filled(text: str, step: Path, folder: Path = RESULTS) -> str:
    """The text of a step with its tables from stored runs."""
    made = f"<!-- ladder -->\n{stored_table(step, folder)}<!-- /ladder -->"
    return _REQUEST.sub(lambda _: made, text)
