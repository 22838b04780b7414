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
TESTS = """
import os, subprocess, sys, time

BUSY = "import time; start = time.process_time()\\nwhile time.process_time() < start + 0.3: pass"

def test_busy():
    exec(BUSY)

def test_idle():
    time.sleep(0.3)

def test_child():
    subprocess.run([sys.executable, "-c", BUSY], check=True)
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


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_plugin_counts_cpu_time_alone(processes: str, tmp_path: Path) -> None:
    """Work in the test and in the programs that it waits for, in one process and in several."""
    pytest.importorskip("xdist")
    folder = tmp_path / "tests" / "python" / "loss"
    folder.mkdir(parents=True)
    (folder / "test_times.py").write_text(TESTS)
    # Without PyTorch, which takes seconds to import.
    (tmp_path / "conftest.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(check.ROOT / 'tools')!r})\n"
        "import cpu_seconds\ncpu_seconds.calibrations = lambda: [0.25]\n"
        "def pytest_configure(config):\n"
        "    path = Path(os.environ['TFK_TEST_TIMES'])\n"
        "    config.pluginmanager.register(cpu_seconds.CpuSeconds(config, path))\n"
    )
    times = tmp_path / "times.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "TFK_TEST_TIMES": str(times)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = check.read_times(times.read_text())
    assert set(found.families) == {"python/collection", "python/loss"}
    assert 0.6 <= found.families["python/loss"] < 1.2
    assert found.calibration == 0.25


def test_families_are_folders() -> None:
    assert cpu_seconds.family_of("tests/python/loss/test_x.py::test[a/b]") == "python/loss"
    assert cpu_seconds.family_of("tests/python/test_x.py::test") == "python/other"
