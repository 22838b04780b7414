# SPDX-License-Identifier: MIT
"""Plans of kernels on the CPU: which are tried, which are kept, and which then run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels import _library, _times, cli, plans

CPU = torch.device("cpu")
SOFTMAX = "plan softmax forward float32 40x256"
RULE, OTHER = "cached", "streamed"

pytestmark = pytest.mark.skipif(not _library.has_kernels, reason="there is no library")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cache" / "tune.txt"
    monkeypatch.setenv("TFK_TUNE_FILE", str(path))
    monkeypatch.delenv("TFK_TUNE", raising=False)
    _forget()
    yield path
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    _times.mode.cache_clear()
    _times._warn.cache_clear()
    _times.read()


@pytest.fixture
def call() -> Callable[[], torch.Tensor]:
    x = torch.randn(40, 256)
    return lambda: tfk.functional.softmax(x, -1)


def _fastest(monkeypatch: pytest.MonkeyPatch, **us: float) -> None:
    """Makes the plans take these times."""

    def in_turn(_call: object, _timed: str, pair: tuple[str, str], _s: float) -> tuple[float, ...]:
        return tuple(us[plan] for plan in pair)

    monkeypatch.setattr(plans, "_in_turn", in_turn)


@pytest.mark.usefixtures("file")
def test_a_call_tells_its_kernels_with_plans(call: Callable[[], torch.Tensor]) -> None:
    assert plans._recorded(call) == [f"{SOFTMAX}\t{RULE}\t{OTHER}"]
    x, weight = torch.randn(24, 64), torch.randn(48, 64)
    (line,) = plans._recorded(lambda: tfk.functional.linear(x, weight, backend="cpu"))
    assert line.split("\t")[1:] == ["whole blocks", "low blocks", "narrow blocks", "small blocks"]
    assert plans._recorded(lambda: x + 1) == []


@pytest.mark.parametrize(
    ("us", "kept"), [(0.97, OTHER), (0.99, None), (1.5, None)], ids=["faster", "as fast", "slower"]
)
def test_a_plan_is_kept_if_it_wins(
    us: float, kept: str | None, file: Path, call: Callable[[], torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _fastest(monkeypatch, cached=1.0, streamed=us)
    (found,) = tfk.autotune(call)
    assert (found.timed, found.rule, found.kept) == (SOFTMAX, RULE, kept)
    assert found.us == {RULE: 1.0, OTHER: us}
    assert list(_times.records()) == ([(_times.machine_of(CPU), SOFTMAX, {OTHER: us, RULE: 1.0})]
                                      if kept else [])  # fmt: skip


def test_a_plan_has_to_win_twice(
    file: Path, call: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([(2.0, 1.0), (1.0, 1.0)])
    monkeypatch.setattr(plans, "_in_turn", lambda *_: next(looks))
    assert tfk.autotune(call)[0].kept is None
    assert not file.exists()


def test_a_plan_that_wins_no_more_is_removed(
    file: Path, call: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    _fastest(monkeypatch, cached=2.0, streamed=1.0)
    tfk.autotune(call)
    _times.keep("another machine", SOFTMAX, {OTHER: 1.0})
    _fastest(monkeypatch, cached=1.0, streamed=1.0)
    tfk.autotune(call)
    assert [machine for machine, *_ in _times.records()] == ["another machine"]
    assert _times.Kept.any


@pytest.mark.usefixtures("file")
def test_a_plan_with_other_results_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, results = torch.randn(40, 256), iter([0.0, 0.0, 1.0])

    def call() -> torch.Tensor:
        return tfk.functional.softmax(x, -1) + next(results)

    monkeypatch.setattr(plans, "_in_turn", lambda *_: pytest.fail("it was timed"))
    (found,) = tfk.autotune(call)
    assert (found.us, found.kept) == ({}, None)


@pytest.mark.usefixtures("file")
def test_all_plans_give_the_same_bits(dtype: torch.dtype) -> None:
    x = torch.randn(48, 320, dtype=dtype, requires_grad=True)
    weight = torch.randn(320, 320, dtype=dtype)
    f = tfk.functional
    for run in (
        lambda: f.softmax(x, -1), lambda: f.gelu(x), lambda: f.rms_norm(x, (320,)),
        lambda: f.linear(x, weight, backend="cpu"),
        lambda: torch.autograd.grad(f.layer_norm(x, (320,)).sum(), x),
        lambda: torch.autograd.grad(f.linear(x, weight, backend="cpu").sum(), x),
    ):  # fmt: skip
        lines = plans._recorded(run)
        expected = plans._results(run())
        assert lines
        for timed, _, *others in (line.split("\t") for line in lines):
            for plan in others:
                with plans._running(timed, plan):
                    assert plans._equal(plans._results(run()), expected), (timed, plan)


@pytest.mark.usefixtures("file")
def test_timing_takes_turns_and_stops_early(call: Callable[[], torch.Tensor]) -> None:
    rules, other = plans._in_turn(call, SOFTMAX, (RULE, OTHER), 0.0)
    assert min(rules, other) > 0
    before = _times.Kept.any
    assert not before
    with pytest.raises(ValueError, match="autotune: seconds is -1, expected at least 0"):
        tfk.autotune(call, -1)


def test_a_call_is_timed_with_the_reading_of_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(torch.Tensor, "sum", lambda self: read.append(self))
    pair = torch.ones(2), torch.ones(3)
    assert plans._once(lambda: pair, 3) > 0
    assert [len(x) for x in read] == [2, 3] * 4  # the first call is not timed


# ---- the file -----------------------------------------------------------------------------------

_CALLS = """
import torch, transformer_kernels as tfk
torch.set_num_threads({threads})
tfk._times.read()
for rows in range(40, 44):
    tfk.functional.softmax(torch.ones(rows, 256), -1)
"""


def test_a_winner_runs_in_the_next_process_and_no_other_entry(file: Path) -> None:
    here, versions = _times.machine_of(CPU), _times._versions()
    lines = {
        40: (versions, here, OTHER),
        41: (versions, "another CPU, 2 threads", OTHER),
        42: ("package 0, kernels 1, torch 2", here, OTHER),
        43: (versions, here, "a plan of nobody"),
    }
    text = [
        f"{version}\t{machine}\t{SOFTMAX.replace('40', str(rows))}\t{plan}=1.0"
        for rows, (version, machine, plan) in lines.items()
    ]
    file.parent.mkdir()
    file.write_text("\n".join([_times._HEADER, *text, ""]))
    environment = {**os.environ, "TFK_TUNE_FILE": str(file), "TFK_LOG": "dispatch"}
    command = [sys.executable, "-c", _CALLS.format(threads=torch.get_num_threads())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = [line for line in done.stderr.splitlines() if "runs: it took" in line]
    assert len(said) == 1
    assert said[0].endswith(f"{SOFTMAX}: {OTHER} runs: it took 1 us here")


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    code = (
        "import sys; from transformer_kernels import _times\n"
        "for i in range(8): _times.keep('a machine', f'plan {sys.argv[1]} {i}', {'cached': 1.0})"
    )
    environment = {**os.environ, "TFK_TUNE_FILE": str(file)}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(i)], env=environment) for i in range(2)
    ]
    assert [writer.wait(timeout=600) for writer in writers] == [0, 0]
    timed = sorted(timed for _, timed, _ in _times.records())
    assert timed == sorted(f"plan {writer} {i}" for writer in range(2) for i in range(8))


def test_a_file_that_cannot_be_written_serves_this_process(
    file: Path, call: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.write_text("")  # where the folder would be
    _fastest(monkeypatch, cached=2.0, streamed=1.0)
    with pytest.warns(RuntimeWarning, match="is not written .*for this process alone"):
        tfk.autotune(call)
    assert _times.Kept.any
    with _times.instead(_times.machine_of(CPU), "plan x", {RULE: 1.0}):
        pass
    assert _times.Kept.any  # what was found holds on


# ---- the command --------------------------------------------------------------------------------


def test_the_command_tries_plans_of_an_op(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--device", "cpu", "softmax", "--shapes", "16x64", "--seconds", "0"]
    assert cli.main([*command, "--dtype", "float32", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "PLANS ON THE CPU" in shown
    for kernel in ("softmax forward float32 16x64", "softmax backward float32 16x64"):
        assert kernel in shown
    assert f"of 2 run by another plan than the rule's; kept in {file}" in shown
    _times.keep(_times.machine_of(CPU), SOFTMAX, {OTHER: 1.0, RULE: 2.0})
    assert cli.main(["tune", "--device", "cpu", "--list"]) == 0
    assert SOFTMAX.removeprefix("plan ") in capsys.readouterr().out
