#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fail where a family of tests takes more CPU time than tests/budget.toml grants it.

check_test_budget.py times.txt            what TFK_TEST_TIMES named in a run of all tests
check_test_budget.py times.txt --write    makes these times the budget

Machines differ in speed: the times of a slower one are scaled to the machine that the budget was
measured on, by the fixed work that both ran (see cpu_seconds.py).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from setup_env import ROOT

# Python 3.10 has it by another name, which comes with pytest.
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

BUDGET = ROOT / "tests" / "budget.toml"
CALIBRATION = "calibration"
TOLERANCE = 1.2
SLACK_S = 5.0  # what small families vary by
HEAD = """\
# CPU seconds that each family of tests may take, user and system time together, on the machine
# where the fixed work of tools/cpu_seconds.py takes `calibration`. tools/check_test_budget.py
# scales the times of another machine, and fails 20 % and 5 s above. Its --write makes a run the
# budget. That run must be of a fresh clone, where compilers and the FPGA's simulation find nothing
# cached; say in the commit what the additional seconds buy.

"""


@dataclass
class Times:
    """CPU seconds by family, `<language>/<folder>`, and the fixed work's."""

    calibration: float
    families: dict[str, float] = field(default_factory=dict)

    def scaled_to(self, other: Times) -> Times:
        """The times of the other machine. A faster machine's stand as they are, because tests need
        not gain by it what the fixed work gains."""
        scale = min(1.0, other.calibration / self.calibration)
        families = {family: seconds * scale for family, seconds in self.families.items()}
        return Times(other.calibration, families)


def read_times(text: str) -> Times:
    """Reads the lines that tests wrote. A test that ran in several instruction sets, `family@set`,
    counts with the slowest set's time, because the machine decides which sets there are.
    """
    speeds: list[float] = []
    spent: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in text.splitlines():
        name, seconds = line.split()
        family, _, isa = name.partition("@")
        if family == CALIBRATION:
            speeds.append(float(seconds))
        else:
            spent[family][isa] += float(seconds)
    if not speeds:
        raise ValueError("times have no calibration, expected those of a run of pytest")
    families = {
        family: by_set.pop("", 0.0) + max(by_set.values(), default=0.0)
        for family, by_set in spent.items()
    }
    return Times(median(speeds), families)


def read_budget(text: str) -> Times:
    tables = toml.loads(text)
    speed = tables.pop(CALIBRATION)
    return Times(
        speed,
        {f"{language}/{name}": s for language, own in tables.items() for name, s in own.items()},
    )


def budget_text(times: Times) -> str:
    tables: defaultdict[str, list[str]] = defaultdict(list)
    for family, seconds in sorted(times.families.items()):
        language, _, name = family.partition("/")
        tables[language].append(f"{name} = {seconds:.1f}\n")
    parts = [f"{CALIBRATION} = {times.calibration:.3f}\n"]
    parts += [f"\n[{language}]\n{''.join(lines)}" for language, lines in tables.items()]
    return HEAD + "".join(parts)


def limit(seconds: float) -> float:
    return seconds * TOLERANCE + SLACK_S


def table(times: Mapping[str, float], budget: Mapping[str, float]) -> list[str]:
    lines = [f"{'CPU s':>7}  {'budget':>7}  family"]
    for family in sorted({*times, *budget}):
        seconds = [f"{own[family]:7.1f}" if family in own else "      -" for own in (times, budget)]
        lines.append(f"{'  '.join(seconds)}  {family}")
    total = "  ".join(f"{sum(own.values()):7.1f}" for own in (times, budget))
    return [*lines, f"{total}  all"]


def over_budget(times: Mapping[str, float], budget: Mapping[str, float]) -> list[str]:
    """Names the families beyond their budget, without one, or without a test."""
    errors = []
    for family in sorted({*times, *budget}):
        if family not in budget:
            errors.append(f"{family}: {times[family]:.1f} s, expected a family with a budget")
        elif family not in times:
            errors.append(f"{family}: no test ran, expected one, or no budget")
        elif times[family] > limit(budget[family]):
            most = limit(budget[family])
            errors.append(f"{family}: {times[family]:.1f} s, expected at most {most:.1f}")
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the tests' CPU time with their budget.")
    parser.add_argument("times", type=Path, help="the file that TFK_TEST_TIMES named")
    parser.add_argument("--write", action="store_true", help="make these times the budget")
    arguments = parser.parse_args()
    measured = read_times(arguments.times.read_text())
    if arguments.write:
        BUDGET.write_text(budget_text(measured))
        return 0
    budget = read_budget(BUDGET.read_text())
    scaled = measured.scaled_to(budget)
    print(*table(scaled.families, budget.families), sep="\n")
    print(
        f"[budget] this machine's fixed work took {measured.calibration:.3f} s, the budget's "
        f"{budget.calibration:.3f} s"
    )
    errors = over_budget(scaled.families, budget.families)
    for error in errors:
        print(f"[budget] {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
