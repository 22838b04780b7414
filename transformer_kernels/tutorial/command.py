# SPDX-License-Identifier: MIT
"""Climbs a ladder of kernels: shows the text and the source of each rung, builds and runs it.

Rungs that this machine cannot run show stored results of another machine, and say so.

$ transformer-kernels tutorial step1-simple
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from transformer_kernels._processor import cpu_name

from . import counters, show
from . import rungs as ladder
from .rungs import Line, Rung

_BUILT = Path("build") / "tutorials"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", nargs="?", metavar="STEP",
                        help="a step's name or its beginning, or `all`; without it the steps are"
                        " listed")  # fmt: skip
    parser.add_argument("--kind", choices=("cpu", "cuda"), help="only these rungs")
    parser.add_argument("--small", action="store_true",
                        help="small problems: they are checked, and their times mean"
                        " nothing")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1,
                        help="run each rung so often and keep its fastest run: other programs"
                        " only make it slower")  # fmt: skip
    parser.add_argument("--exercise", action="store_true", help="build and check the exercise")
    parser.add_argument("--table", action="store_true", help="leave out texts and sources")
    parser.add_argument("--store", type=Path, metavar="FOLDER",
                        help="keep what was measured there, as cpu.json and"
                        " cuda.json")  # fmt: skip
    parser.add_argument("--counters", type=Path, metavar="FOLDER",
                        help="count by Nsight Compute what one launch of each CUDA rung does, and"
                        " keep it there, as counters.json")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FOLDER",
                        help="draw the times there, as stairs above the ceiling; stored times"
                        " where no rung runs")  # fmt: skip
    parser.add_argument("--write", action="store_true",
                        help="write the tables of stored results into the texts, and run"
                        " nothing")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    found = ladder.steps()
    if arguments.write:
        for step in found:
            text = step / "README.md"
            text.write_text(show.filled(text.read_text(), step))
        return 0
    if arguments.step is None:
        for step in found:
            print(f"{step.name:<18}{_title(step)}")
        return 0
    chosen = [s for s in found if arguments.step == "all" or s.name.startswith(arguments.step)]
    if not chosen:
        names = ", ".join(step.name for step in found)
        raise ValueError(f"STEP is {arguments.step!r}, expected all or one of {names}")
    if arguments.exercise:
        return max(_exercise(step, arguments.small) for step in chosen)
    if arguments.counters:
        return _count(chosen, arguments.counters)
    return _climb_all(chosen, arguments)


def _title(step: Path) -> str:
    return (step / "README.md").read_text().splitlines()[0].removeprefix("# ")


def _climb_all(chosen: list[Path], arguments: argparse.Namespace) -> int:
    kinds = (arguments.kind,) if arguments.kind else ("cpu", "cuda")
    lines: dict[str, dict[str, list[Line]]] = {kind: {} for kind in kinds}
    with_text = not arguments.table and arguments.step != "all"
    for step in chosen:
        before, after = show.text(step) if with_text else ("", "")
        print(before, end="")
        for rung in ladder.rungs(step, kinds) if with_text else ():
            print(f"==== {rung.name}\n{rung.kernel}\n")
        for kind in kinds:
            lines[kind][step.name] = _climb(step, kind, arguments.small, arguments.rounds)
            if arguments.plot:
                _plot(step.name, kind, lines[kind], arguments.plot)
        if with_text:
            print(f"{show.counters_table(step)}{after.strip()}")
    if arguments.store:
        _store(lines, arguments.store)
    return int(any(line.failed for of in lines.values() for found in of.values() for line in found))


def _climb(step: Path, kind: str, small: bool, rounds: int) -> list[Line]:
    """Builds and runs the rungs of one kind, and prints their table."""
    wanted = ladder.rungs(step, (kind,))
    capability = _capability() if kind == "cuda" else None
    reasons = ladder.build_all(wanted, _BUILT, capability)
    runs = [[_line(rung, reasons[rung], small) for rung in wanted] for _ in range(max(1, rounds))]
    lines = [_fastest(of) for of in zip(*runs, strict=True)]
    shown, note = show.with_stored(lines, show.stored(kind), step.name)
    problems = sorted({line.problem for line in shown if line.problem})
    print(f"{step.name}, {kind}: {'; '.join(problems) or 'nothing ran'}")
    print(f"{show.table(shown)}\n{note}".rstrip(), end="\n\n")
    return lines


def _line(rung: Rung, reason: str, small: bool) -> Line:
    if not reason:
        return ladder.run(rung, _BUILT, small)
    return Line(rung.name, why_absent=reason, failed="is not installed" not in reason)


def _fastest(lines: Sequence[Line]) -> Line:
    """The fastest run of a rung; a run that failed counts first, for it must not be lost."""
    return min(lines, key=lambda line: (not line.failed, line.us))


def _exercise(step: Path, small: bool) -> int:
    """Checks the exercise; the status is 1 until it is solved."""
    rung = ladder.exercise(step)
    line = _line(rung, ladder.build(rung, _BUILT), small)
    print(show.table([line]))
    print("not solved yet" if line.why_absent else "solved")
    return int(bool(line.why_absent))


def _count(chosen: Sequence[Path], folder: Path) -> int:
    """Counts what the CUDA rungs do, and keeps it; the status is 1 where nothing was counted."""
    steps: dict[str, dict[str, counters.Row]] = {}
    for step in chosen:
        wanted = ladder.rungs(step, ("cuda",)) if step.name in counters.COLUMNS else []
        reasons = ladder.build_all(wanted, _BUILT, _capability())
        for rung in wanted:
            rows, reason = ({}, reasons[rung]) if reasons[rung] else counters.count(rung, _BUILT)
            print(f"{step.name}, {rung.name}: {reason or 'counted'}")
            if rows:
                steps[step.name] = steps.get(step.name, {}) | rows
    if steps:
        counters.store(_machine("cuda"), steps, folder)
    return int(not steps)


def _capability() -> int | None:
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _plot(step: str, kind: str, lines: dict[str, list[Line]], folder: Path) -> None:
    """Draws the rungs of a step that ran, or the stored ones where none did."""
    from transformer_kernels.measure import style

    from . import stairs

    ladder = _measured(kind, {step: lines[step]}) or show.stored(kind)
    plot = stairs.staircase(step, ladder) if ladder else None
    if plot is None:
        print(f"{step}, {kind}: nothing is drawn, because fewer than two rungs have times\n")
        return
    with plot.figure() as drawn:
        drawn.suptitle(plot.caption, fontsize=7.5)
        paths = style.save(drawn, folder, f"{step}-{kind}")
    print(f"drawn: {', '.join(map(str, paths))}\n")


def _store(lines: dict[str, dict[str, list[Line]]], folder: Path) -> None:
    for kind, of in lines.items():
        if ladder := _measured(kind, of):
            show.store(ladder, kind, folder)


def _measured(kind: str, lines: dict[str, list[Line]]) -> show.Ladder | None:
    """The rungs that ran, as a ladder of this machine; None where none did."""
    ran = {
        step: found
        for step, of in lines.items()
        if (found := [line for line in of if not line.why_absent])
    }
    if not ran:
        return None
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return show.Ladder(_machine(kind), today, ran)


def _machine(kind: str) -> str:
    if kind == "cuda":
        return torch.cuda.get_device_name()
    return f"{cpu_name()}, {os.cpu_count()} cores"
