# SPDX-License-Identifier: MIT
"""The rule of errors, and the second draw of a test that misses its bound by little."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import ProcessRaisedException

from transformer_kernels.testing import processes
from transformer_kernels.testing.tolerance import (
    NearMissError,
    assert_close_to_reference,
    floor_unit,
)

ROOT = Path(__file__).resolve().parents[3]

DRAWS = """
from pathlib import Path
import torch
from transformer_kernels.testing.tolerance import assert_close_to_reference, floor_unit

def draw(name, *errors):
    '''Checks the next of these errors, in units of its bound.'''
    seen = Path(__file__).with_name(name)
    numbers = seen.read_text().split() if seen.exists() else []
    seen.write_text(" ".join([*numbers, str(torch.randint(2**31, ()).item())]))
    one = torch.ones(1)
    ours = one + errors[len(numbers)] * floor_unit(torch.float32)
    assert_close_to_reference(ours, one, one)

def test_one_near_miss(): draw("one", 1.25, 0.5)
def test_two_near_misses(): draw("two", 1.25, 1.25)
def test_far_miss(): draw("far", 2.0, 0.5)
"""


@pytest.mark.parametrize("excess", [1.25, 2.0])
def test_near_misses_are_told_from_wrong_results(excess: float) -> None:
    one = torch.ones(3)
    assert_close_to_reference(one + 0.75 * floor_unit(torch.float32), one, one)
    with pytest.raises(AssertionError, match=r"y: error .* > 2 x torch's") as found:
        assert_close_to_reference(one + excess * floor_unit(torch.float32), one, one, "y")
    assert isinstance(found.value, NearMissError) == (excess < 1.5)


@pytest.mark.parametrize(
    "wrong", [torch.ones(2), torch.full((3,), torch.nan)], ids=("shape", "nan")
)
def test_wrong_shapes_and_nan_are_no_near_misses(wrong: torch.Tensor) -> None:
    with pytest.raises(AssertionError) as found:
        assert_close_to_reference(wrong, torch.ones(3), torch.ones(3))
    assert not isinstance(found.value, NearMissError)


def near_miss() -> None:
    one = torch.ones(1)
    assert_close_to_reference(one + 1.25 * floor_unit(torch.float32), one, one)


def far_miss() -> None:
    one = torch.ones(1)
    assert_close_to_reference(one + 2.0 * floor_unit(torch.float32), one, one)


@pytest.mark.parametrize("case", [near_miss, far_miss])
def test_near_misses_of_processes_are_such_too(
    case: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process hands text to the one that started it."""

    def start(process: Callable[..., None], arguments: tuple[Any, ...], **_: Any) -> None:
        try:
            process(0, *arguments)
        except AssertionError:
            raise ProcessRaisedException(traceback.format_exc(), 0, 1) from None

    monkeypatch.setattr(processes, "start_processes", start)
    monkeypatch.setattr(processes, "meet", lambda *_: None)
    kind = NearMissError if case is near_miss else ProcessRaisedException
    with pytest.raises(kind, match=f"{case.__name__} in process 0: "):
        processes.run_together([case], 1, tmp_path)


def test_a_near_miss_is_drawn_once_more(tmp_path: Path) -> None:
    pytest.importorskip("pytest_rerunfailures")
    (tmp_path / "test_draws.py").write_text(DRAWS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-pconftest", "-pno:cacheprovider", "-Wignore"]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    own = {name: x for name, x in os.environ.items() if name != "TFK_TEST_TIMES"}
    variables = {**own, "PYTHONPATH": paths}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=variables)
    assert "2 failed, 1 passed, 2 rerun" in result.stdout, result.stdout + result.stderr
    assert "FAILED test_draws.py::test_one_near_miss" not in result.stdout
    draws = {name: (tmp_path / name).read_text().split() for name in ("one", "two", "far")}
    assert [len(set(draws[name])) for name in ("one", "two", "far")] == [2, 2, 1]
