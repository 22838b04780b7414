# SPDX-License-Identifier: MIT
"""Rungs of the ladders: they compile alone, check themselves, and print their line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from transformer_kernels.tutorial import rungs
from transformer_kernels.tutorial.rungs import Line, Rung

STEPS = rungs.steps()
CPU = [rung for step in STEPS for rung in rungs.rungs(step, ("cpu",))]
CUDA = [rung for step in STEPS for rung in rungs.rungs(step, ("cuda",))]
EXERCISES = [rungs.exercise(step) for step in STEPS]
SOLUTIONS = Path(__file__).parent / "solutions"
FRAME = re.compile(r"^// ---- frame.*^// ---- end of the frame", re.MULTILINE | re.DOTALL)
TURN = re.compile(r"(?<=// ---- your turn ----\n).*(?=// ---- end of your turn)", re.DOTALL)


def _name(rung: Rung) -> str:
    return f"{rung.step}-{rung.name}"


@pytest.mark.parametrize("rung", CPU, ids=_name)
def test_a_rung_for_cpus_is_right(rung, tmp_path):
    assert rungs.build(rung, tmp_path) == ""
    line = rungs.run(rung, tmp_path, small=True)
    assert line.why_absent == ""
    assert (line.rung, line.device) == (rung.name, "CPU")
    assert line.us > 0
    assert line.rate > 0
    assert 0 < line.error < 1e-5


def _needed(rung: Rung) -> None:
    """Skips a rung whose compiler or library is missing."""
    if rung.is_python:
        pytest.importorskip("transformers" if rung.step == "step5-integration" else "triton")
    elif shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")


@pytest.mark.parametrize("rung", CUDA, ids=_name)
def test_a_cuda_rung_compiles_alone(rung, tmp_path):
    _needed(rung)
    assert rungs.build(rung, tmp_path) == ""
    if not torch.cuda.is_available():
        line = rungs.run(rung, tmp_path, small=True)
        assert (line.why_absent, line.failed) == ("there is no CUDA card", False)


@pytest.mark.cuda
@pytest.mark.parametrize("rung", CUDA, ids=_name)
def test_a_cuda_rung_is_right(rung, tmp_path):
    _needed(rung)
    major, minor = torch.cuda.get_device_capability()
    assert rungs.build(rung, tmp_path, 10 * major + minor) == ""
    line = rungs.run(rung, tmp_path, small=True)
    assert not line.failed, line.why_absent
    assert re.search("sm_|is not installed", line.why_absent) or line.rate > 0


@pytest.mark.parametrize("rung", [*CPU, *CUDA, *EXERCISES], ids=_name)
def test_a_rung_is_short_and_stands_alone(rung):
    text = rung.source.read_text()
    assert len(FRAME.sub("", text).splitlines()) <= 200
    assert '#include "' not in text
    assert "transformer_kernels/" not in text
    assert f'"{rung.name}' in text
    if rung.name != "exercise":
        assert f"**`{rung.source.name}`**" in (rung.source.parent / "README.md").read_text()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_rungs_share_the_lines_of_their_frame(kind):
    frames: dict[str, str] = {}
    for rung in CPU if kind == "cpu" else CUDA:
        if rung.is_python:
            continue
        found = FRAME.search(rung.source.read_text())
        assert found is not None
        frames.setdefault(found[0], rung.name)
    assert len(frames) == 1, list(frames.values())


def test_an_exercise_fails_until_it_is_solved(tmp_path):
    for rung in EXERCISES:
        assert rungs.build(rung, tmp_path) == ""
        line = rungs.run(rung, tmp_path, small=True)
        assert line.failed
        assert "wrong: the error is" in line.why_absent
        step = tmp_path / "solved" / rung.step
        shutil.copytree(rung.source.parent, step)
        solution = (SOLUTIONS / f"{rung.step}.cpp").read_text().partition("\n")[2]
        empty = step / "exercise.cpp"
        empty.write_text(TURN.sub(lambda _, s=solution: s, empty.read_text()))
        solved = rungs.exercise(step)
        assert rungs.build(solved, tmp_path) == ""
        assert rungs.run(solved, tmp_path, small=True).why_absent == ""


def _written(folder: Path, body: str) -> Rung:
    step = folder / "step1-simple"
    step.mkdir(parents=True, exist_ok=True)
    build = "// Build: g++ -std=c++17 -o cpu1 cpu1.cpp"
    (step / "cpu1.cpp").write_text(f"{build}\n#include <cstdio>\n{body}\n")
    return Rung(step / "cpu1.cpp")


def test_a_wrong_rung_is_told_from_an_absent_one(tmp_path):
    wrong = _written(tmp_path, 'int main() { std::puts("a\\nwrong: it is"); return 1; }')
    assert rungs.build(wrong, tmp_path) == ""
    assert rungs.run(wrong, tmp_path) == Line(
        "cpu1", why_absent="exit status 1: wrong: it is", failed=True
    )
    absent = _written(tmp_path, 'int main() { std::puts("an older card"); return 77; }')
    assert rungs.build(absent, tmp_path) == ""
    assert rungs.run(absent, tmp_path) == Line("cpu1", why_absent="an older card")
    slow = _written(tmp_path, "int main() { for (volatile int i = 0;; i = 1 - i); }")
    assert rungs.build(slow, tmp_path) == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rungs, "SECONDS", 0.1)
        assert rungs.run(slow, tmp_path).why_absent == "takes more than 0.1 s"


def test_a_compiler_that_fails_or_is_missing_is_named(tmp_path, monkeypatch):
    broken = _written(tmp_path, "int main() { return nothing; }")
    assert re.match(
        r"g\+\+ fails: .*error: .nothing. was not declared", rungs.build(broken, tmp_path)
    )
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert rungs.build(broken, tmp_path) == "no-such-compiler is not installed"


def test_the_build_command_is_for_the_card(tmp_path):
    by_name = {_name(rung): rung for rung in CUDA}
    vector, bulk = by_name["step1-simple-cuda3_vector"], by_name["step2-reduction-cuda7_bulk_copy"]
    program = tmp_path / "program"
    assert "-arch=sm_75" in vector.command(program, None)
    assert "-arch=sm_90" in vector.command(program, 90)
    assert "-arch=sm_90" in bulk.command(program, 75)  # which then says that the card is older
    only = tmp_path / "cuda1.cu"
    only.write_text("// Build: nvcc -arch=sm_90a -o cuda1 cuda1.cu\n")
    assert "-arch=sm_90a" in Rung(only).command(program, 120)
    only.write_text("int main() {}\n")
    with pytest.raises(ValueError, match="has no line `// Build: COMMAND`"):
        Rung(only).command(program, None)


def test_the_line_of_a_rung_is_read():
    text = "cuda1 | NVIDIA H200 | 8 bfloat16 | 12.5 us | 3.0 GB/s | 97.5 % | 1.5e-07"
    assert rungs.parse(text) == Line(
        "cuda1", "NVIDIA H200", "8 bfloat16", 12.5, 3.0, "GB/s", 97.5, 1.5e-7
    )
    with pytest.raises(ValueError, match="expected seven parts between bars"):
        rungs.parse("hello")


def test_an_installed_wheel_has_no_tutorials(tmp_path):
    with pytest.raises(ValueError, match="expected a checkout of the project"):
        rungs.steps(tmp_path)
