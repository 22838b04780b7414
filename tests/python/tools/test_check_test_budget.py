# SPDX-License-Identifier: MIT
"""The budget of the tests' CPU time: what is measured, how it is scaled, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import check_test_budget as check
import cpu_seconds

FAMILIES = {"cpp/norm": 10.0, "python/loss": 100.0}
BUDGET = check.Times(0.5, FAMILIES)
# A clock that only the tests move, by times that add up to the same in any order.
CLOCK = """
import os, sys
from pathlib import Path

sys.path.insert(0, {tools!r})
import cpu_seconds

cpu_seconds.now = 100.0
cpu_seconds.cpu_seconds = lambda: cpu_seconds.now
cpu_seconds.calibrations = lambda: [0.25]

def pytest_configure(config):
    path = Path(os.environ["TFK_TEST_TIMES"])
    config.pluginmanager.register(cpu_seconds.CpuSeconds(config, path))
"""
TESTS = """
import cpu_seconds
import pytest

cpu_seconds.now += 1.0  # the module is collected

@pytest.fixture
def ready():
    cpu_seconds.now += 0.125
    yield
    cpu_seconds.now += 0.25

def test_busy(ready):
    cpu_seconds.now += 2.0

def test_busier():
    cpu_seconds.now += 4.0

def test_idle():
    pass
"""


def test_lines_of_several_programs_add_up() -> None:
    lines = ("cpp/norm 1", "python/loss 2", "calibration 0.4", "cpp/norm 2.5", "calibration 0.6")
    times = check.read_times("\n".join(lines))
    assert times.families == {"cpp/norm": 3.5, "python/loss": 2.0}
    assert times.calibration == 0.5
    with pytest.raises(ValueError, match="no calibration"):
        check.read_times("cpp/norm 1")


def test_of_instruction_sets_the_slowest_counts() -> None:
    lines = ("cpp/norm@scalar 2", "cpp/norm@avx2 1", "cpp/norm@avx2 1.5", "cpp/norm 4")
    times = check.read_times("\n".join([*lines, "calibration 0.5"]))
    assert times.families == {"cpp/norm": 6.5}


def test_a_budget_is_read_as_it_is_written() -> None:
    assert check.read_budget(check.budget_text(BUDGET)) == BUDGET


def test_a_slower_machine_is_no_slower_test() -> None:
    slower = check.Times(1.0, {family: 2 * seconds for family, seconds in FAMILIES.items()})
    assert slower.scaled_to(BUDGET) == BUDGET


def test_a_faster_machine_is_asked_for_no_more() -> None:
    faster = check.Times(BUDGET.calibration / 2, dict(BUDGET.families))
    assert faster.scaled_to(BUDGET) == BUDGET


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"cpp/norm": 16.9, "python/loss": 124.9}, []),
        ({"cpp/norm": 17.1}, ["cpp/norm: 17.1 s, expected at most 17.0"]),
        ({"python/loss": 125.1}, ["python/loss: 125.1 s, expected at most 125.0"]),
        ({"cpp/new": 0.1}, ["cpp/new: 0.1 s, expected a family with a budget"]),
    ],
)
def test_what_is_refused(changes: dict[str, float], words: list[str]) -> None:
    assert check.over_budget(FAMILIES | changes, FAMILIES) == words


def test_a_budget_without_a_test_is_refused() -> None:
    assert check.over_budget({"cpp/norm": 1.0}, FAMILIES) == [
        "python/loss: no test ran, expected one, or no budget"
    ]


def test_the_table_has_every_family_and_the_sums() -> None:
    lines = check.table({"cpp/norm": 1.0, "cpp/new": 2.0}, FAMILIES)
    assert [line.split() for line in lines[1:]] == [
        ["2.0", "-", "cpp/new"],
        ["1.0", "10.0", "cpp/norm"],
        ["-", "100.0", "python/loss"],
        ["3.0", "110.0", "all"],
    ]


def test_a_budget_that_is_exceeded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.txt"
    monkeypatch.setattr(check, "BUDGET", tmp_path / "budget.toml")
    monkeypatch.setattr(sys, "argv", ["check", str(times), "--write"])
    times.write_text("python/loss 10\ncalibration 0.5\n")
    assert check.main() == 0
    monkeypatch.setattr(sys, "argv", ["check", str(times)])
    assert check.main() == 0
    times.write_text("python/loss 18\ncalibration 0.5\n")
    assert check.main() == 1
    assert "[budget] python/loss: 18.0 s, expected at most 17.0" in capsys.readouterr().out
    times.write_text("python/loss 18\ncalibration 0.8\n")
    assert check.main() == 0


def test_the_programs_that_a_test_waits_for_count_and_elapsed_time_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = os.times_result((1.0, 2.0, 4.0, 8.0, 16.0))  # the last is elapsed
    monkeypatch.setattr(cpu_seconds.os, "times", lambda: times)
    assert cpu_seconds.cpu_seconds() == 15.0


@pytest.mark.parametrize("processes", [0, 2])
def test_the_plugin_adds_up_the_tests_of_all_processes(processes: int, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    folder = tmp_path / "tests" / "python" / "loss"
    folder.mkdir(parents=True)
    (folder / "test_times.py").write_text(TESTS)
    # Without PyTorch, which takes seconds to import.
    (tmp_path / "conftest.py").write_text(CLOCK.format(tools=str(check.ROOT / "tools")))
    times = tmp_path / "times.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "TFK_TEST_TIMES": str(times)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert check.read_times(times.read_text()) == check.Times(
        0.25, {"python/collection": 1.0 * max(1, processes), "python/loss": 6.375}
    )


def test_families_are_folders() -> None:
    assert cpu_seconds.family_of("tests/python/loss/test_x.py::test[a/b]") == "python/loss"
    assert cpu_seconds.family_of("tests/python/test_x.py::test") == "python/other"
