#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how much of the RTL the simulations reach: lines, branches and toggles.

    fpga_coverage.py coverage.dat ...     reads runs of array_test, built with --coverage

Counts of the same place add up over runs and tops. Places in fpga/sim/coverage_exclusions.txt, each
with a reason, do not count. The check fails if less than 95 % of a kind is reached, or if an
exclusion excludes nothing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from setup_env import ROOT

RTL = ROOT / "fpga" / "rtl"
EXCLUSIONS = ROOT / "fpga" / "sim" / "coverage_exclusions.txt"
LEAST_PERCENT = 95.0


@dataclass(frozen=True)
class Point:
    """A place that a simulation may reach."""

    kind: str  # line, branch or toggle
    file: str
    line: int
    signal: str  # of a toggle, without its bit; otherwise Verilator's name of the branch
    bit: int
    instance: str

    def __str__(self) -> str:
        bit = f"[{self.bit}]" if self.bit >= 0 else ""
        return f"{self.kind} {self.file}:{self.line} {self.signal}{bit} ({self.instance})"


def read_points(text: str) -> Counter[Point]:
    """Reads a file of Verilator's: each line has fields with short names, and a count."""
    points: Counter[Point] = Counter()
    for line in text.splitlines():
        if not line.startswith("C '"):
            continue
        body, count = line[3:].rsplit("' ", 1)
        fields = dict(part.split("\x02", 1) for part in body.split("\x01") if "\x02" in part)
        name = re.fullmatch(r"(.*?)(?:\[(\d+)\])?", fields["o"])
        assert name is not None
        # The array by itself and the array within byte_top have the same places.
        instance = re.sub(r"^TOP\.(byte_top\.array|attention_array)", "array", fields["h"])
        point = Point(
            kind=fields["page"].split("/")[0].removeprefix("v_"),
            file=Path(fields["f"]).name,
            line=int(fields["l"]),
            signal=name[1],
            bit=int(name[2]) if name[2] else -1,
            instance=instance,
        )
        points[point] += int(count)
    return points


@dataclass(frozen=True)
class Exclusion:
    """A line of the list: `file | what | reason`. `what` is a signal, with bits if not all are
    meant, or in quotes a part of a branch's source line."""

    file: str
    what: str
    reason: str

    def covers(self, point: Point) -> bool:
        if point.file != self.file:
            return False
        if self.what.startswith('"'):
            source = (RTL / point.file).read_text().splitlines()[point.line - 1]
            return point.kind == "branch" and self.what.strip('"') in source
        what = re.fullmatch(r"(.*?)(?:\[(\d+):(\d+)\])?", self.what)
        assert what is not None
        name, high, low = what.groups()
        in_bits = high is None or int(low) <= point.bit <= int(high)
        return point.kind == "toggle" and point.signal == name and in_bits


def read_exclusions(text: str) -> list[Exclusion]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Exclusion(*(part.strip() for part in line.split("|", 2))) for line in lines]


def summary(points: Counter[Point], exclusions: Iterable[Exclusion]) -> tuple[str, list[str]]:
    """A table, and a list of failures."""
    missed = [point for point, count in points.items() if count == 0]
    excluded = {rule: {point for point in missed if rule.covers(point)} for rule in exclusions}
    left_out: set[Point] = set().union(*excluded.values()) if excluded else set()
    rows, wrong = [], []
    for kind in ("line", "branch", "toggle"):
        there = {point for point in points if point.kind == kind} - left_out
        reached = sum(points[point] > 0 for point in there)
        percent = 100 * reached / max(len(there), 1)
        skipped = sum(point.kind == kind for point in left_out)
        rows.append(
            f"{kind:7} {percent:6.2f} %  {reached} of {len(there)}, {skipped} more excluded"
        )
        if percent < LEAST_PERCENT:
            wrong.append(f"{kind}: {percent:.2f} %, expected at least {LEAST_PERCENT} %")
    wrong += [
        f"excludes nothing: {rule.file} {rule.what}"
        for rule, found in excluded.items()
        if not found
    ]
    rows += [f"not reached: {point}" for point in missed if point not in left_out]
    return "\n".join(rows), wrong


def main(files: Sequence[str]) -> int:
    points: Counter[Point] = Counter()
    for file in files:
        # update() keeps places with a count of 0; the operator would drop them.
        points.update(read_points(Path(file).read_text(errors="replace")))
    table, wrong = summary(points, read_exclusions(EXCLUSIONS.read_text()))
    print(table)
    for line in wrong:
        print(line)
    return 1 if wrong or not points else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
