# SPDX-License-Identifier: MIT
"""The CPU seconds that each family of Python tests takes, and how fast this machine is.

`TFK_TEST_TIMES` names the file that tests append lines to, `<language>/<family> <seconds>`, the C++
tests as well as pytest; check_test_budget.py adds them up. User and system time are counted, of the
process with its threads and of the programs that it waited for, so that neither idle time nor other
work on the machine counts. `calibration` is the CPU time of a fixed piece of work.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

VARIABLE = "TFK_TEST_TIMES"
CALIBRATION = "calibration"
REPEATS = 3
MOST = 25  # tests that are listed, with all of their cases as one


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def family_of(nodeid: str) -> str:
    """The folder of tests/python that a test lies in; a test beside the folders is of `other`."""
    path = nodeid.partition("::")[0]
    parts = path.removeprefix("tests/python/").split("/")
    return f"python/{parts[0] if len(parts) > 1 else 'other'}"


def _bytecode() -> int:
    total, seen = 0, {}
    for i in range(2_000_000):
        seen[i & 1023] = total
        total = (total * 3 + i) & 0xFFFF
    return total + len(seen)


def _small_operations() -> None:
    import torch

    x = torch.ones(64, 64)
    for _ in range(24_000):
        x = (x + 1.0).mul(0.5).sum(0, keepdim=True).expand(64, 64).contiguous()


def _copies() -> None:
    source, other = bytearray(1 << 25), bytearray(1 << 25)
    for _ in range(36):
        other[:] = source


WORK: tuple[Callable[[], Any], ...] = (_bytecode, _small_operations, _copies)


def calibration() -> float:
    """CPU seconds of the fixed work, about half a one, on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.process_time()
    for work in WORK:
        work()
    spent = time.process_time() - start
    torch.set_num_threads(threads)
    return spent


def calibrations() -> list[float]:
    return [calibration() for _ in range(REPEATS)]


class CpuSeconds:
    """A plugin of pytest, in the process that runs the tests and in xdist's controller alike.

    The time of a test travels on its reports. A worker's own lines, those of collection and
    calibration, travel when it ends.
    """

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.path = path
        self.worker: dict[str, Any] | None = getattr(config, "workeroutput", None)
        self.controls = bool(getattr(config.option, "numprocesses", 0)) and self.worker is None
        self.since = 0.0
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.tests: defaultdict[str, float] = defaultdict(float)
        self.speeds: list[float] = []

    def pytest_sessionstart(self) -> None:
        if not self.controls:
            self.speeds += calibrations()
        self.since = cpu_seconds()

    def pytest_collection_finish(self) -> None:
        if not self.controls:
            self.spent["python/collection"] += cpu_seconds() - self.since

    def pytest_runtest_logstart(self) -> None:
        self.since = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = cpu_seconds()
        report.cpu_seconds = now - self.since
        self.since = now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.worker is None and hasattr(report, "cpu_seconds"):
            self.spent[family_of(report.nodeid)] += report.cpu_seconds
            self.tests[report.nodeid.partition("[")[0]] += report.cpu_seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if not self.controls:
            self.speeds += calibrations()
        if self.worker is not None:
            self.worker["cpu_seconds"] = (dict(self.spent), self.speeds)
        elif not self.controls:
            self.write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        spent, speeds = getattr(node, "workeroutput", {}).get("cpu_seconds", ({}, []))
        for family, seconds in spent.items():
            self.spent[family] += seconds
        self.speeds += speeds

    def pytest_unconfigure(self) -> None:
        if self.controls:
            self.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("most CPU seconds")
        dearest = sorted(self.tests.items(), key=lambda test: -test[1])[:MOST]
        for name, seconds in dearest:
            terminalreporter.write_line(f"{seconds:7.1f}  {name}")

    def write(self) -> None:
        lines = [f"{family} {seconds:.3f}\n" for family, seconds in sorted(self.spent.items())]
        if self.speeds:
            lines.append(f"{CALIBRATION} {median(self.speeds):.4f}\n")
        with self.path.open("a") as file:
            file.writelines(lines)
