# SPDX-License-Identifier: MIT
"""`transformer-kernels tutorial`: what it shows, stores and writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transformer_kernels import cli
from transformer_kernels.tutorial import command, rungs, show
from transformer_kernels.tutorial.rungs import Line

FAST = Line("cuda1", "Card", "8 bfloat16", 12.5, 3.0, "GB/s", 50.0, 1e-7)
ABSENT = Line("cuda1", why_absent="there is no CUDA card")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_steps_are_listed(capsys):
    assert cli.main(["tutorial"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [step.name for step in rungs.steps()]
    assert cli.main(["tutorial", "step9"]) == 2
    assert "STEP is 'step9', expected all or one of step1-simple, " in capsys.readouterr().err


def test_a_step_shows_text_source_and_table(capsys, tmp_path):
    folder = tmp_path / "kept"
    arguments = ["tutorial", "step1", "--small", "--kind", "cpu", "--store", str(folder)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    for words in (
        "# Elementwise kernels",
        "==== cpu1_scalar\n",
        "void gelu(",
        "step1-simple, cpu: ",
        "## Exercise",
    ):
        assert words in shown
    assert "---- frame" not in shown
    assert "<!--" not in shown
    assert shown.index("step1-simple, cpu: ") < shown.index("## Exercise")
    kept = show.stored("cpu", folder)
    assert [line.rung for line in kept.lines["step1-simple"]] == [
        "cpu1_scalar", "cpu2_simd", "cpu3_threads",
    ]  # fmt: skip


def test_a_missing_compiler_does_not_stop_the_ladder(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("NVCC", "no-such-nvcc")
    assert cli.main(["tutorial", "step1", "--table"]) == 0
    shown = capsys.readouterr().out
    assert "no-such-compiler is not installed" in shown
    assert "no-such-nvcc is not installed" in shown
    assert "cpu3_threads" in shown


def test_a_rung_that_fails_fails_the_command(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    assert cli.main(["tutorial", "step1", "--kind", "cpu", "--table"]) == 1
    assert "false fails: it says nothing" in capsys.readouterr().out


def test_an_exercise_that_is_not_solved_fails(capsys):
    assert cli.main(["tutorial", "step1", "--exercise", "--small"]) == 1
    assert "not solved yet" in capsys.readouterr().out


def test_stored_lines_stand_in_and_say_so(tmp_path):
    ladder = show.Ladder("Card", "2026-01-02", {"step1": [FAST]})
    show.store(ladder, "cuda", tmp_path)
    assert show.stored("cuda", tmp_path) == ladder
    lines, note = show.with_stored([ABSENT], ladder, "step1")
    assert lines == [FAST]
    assert note == ("there is no CUDA card; their lines are stored results of Card (2026-01-02).")
    lines, note = show.with_stored([ABSENT], None, "step1")
    assert lines == [Line("cuda1", why_absent="not measured yet")]
    assert note == "there is no CUDA card; these rungs are not measured yet."
    wrong = Line("cuda1", why_absent="exit status 1", failed=True)
    assert show.with_stored([wrong], ladder, "step1") == ([wrong], "")
    assert show.with_stored([FAST], ladder, "step1") == ([FAST], "")


def test_storing_keeps_other_steps_of_the_same_machine(tmp_path):
    show.store(show.Ladder("Card", "2026-01-02", {"step1": [FAST]}), "cuda", tmp_path)
    show.store(show.Ladder("Card", "2026-01-03", {"step2": [FAST]}), "cuda", tmp_path)
    assert show.stored("cuda", tmp_path).lines == {"step1": [FAST], "step2": [FAST]}
    show.store(show.Ladder("Other", "2026-01-03", {"step2": [FAST]}), "cuda", tmp_path)
    assert show.stored("cuda", tmp_path).lines == {"step2": [FAST]}


def test_the_fastest_of_several_runs_is_shown(tmp_path, monkeypatch, capsys):
    step = tmp_path / "step1"
    step.mkdir()
    (step / "cpu1.cpp").touch()
    times = iter([9.0, 5.0, 7.0])
    monkeypatch.setattr(command.ladder, "steps", lambda: [step])
    monkeypatch.setattr(command.ladder, "build", lambda *_: "")
    monkeypatch.setattr(command.ladder, "run", lambda *_: replace(FAST, us=next(times)))
    arguments = ["tutorial", "step1", "--kind", "cpu", "--table", "--rounds", "3"]
    assert cli.main(arguments) == 0
    assert " 5.0 us" in capsys.readouterr().out
    absent = replace(ABSENT, failed=True)
    assert command._fastest([FAST, absent]) == absent


def test_a_table_has_a_bar_for_each_line():
    many = replace(FAST, rate=650123.0, unit="GFLOP/s")
    lines = [FAST, Line("cuda2", why_absent="older card"), many]
    rows = show.table(lines).splitlines()
    assert "650.1 TFLOP/s" in rows[3]
    assert rows[1].split()[:6] == ["cuda1", "12.5", "us", "3.0", "GB/s", "50.0"]
    assert rows[1].count("█") == 20
    assert rows[2].endswith("older card")


def test_the_rungs_that_ran_are_drawn_or_the_stored_ones(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    step = tmp_path / "step1"
    step.mkdir()
    for name in ("cpu1_a.cpp", "cpu2_b.cpp", "cuda1_c.cu", "cuda2_d.cu"):
        (step / name).touch()
    lines = {"cpu1_a": replace(FAST, rung="cpu1_a"), "cpu2_b": ABSENT}
    kept = show.Ladder("Card", "2026-01-02", {"step1": [FAST, replace(FAST, us=9.0)]})
    monkeypatch.setattr(command.ladder, "steps", lambda: [step])
    monkeypatch.setattr(command.ladder, "build_all", lambda wanted, *_: dict.fromkeys(wanted, ""))
    monkeypatch.setattr(command.ladder, "run", lambda rung, *_: lines.get(rung.name, ABSENT))
    monkeypatch.setattr(show, "stored", lambda kind: kept if kind == "cuda" else None)
    plots = tmp_path / "plots"
    assert cli.main(["tutorial", "step1", "--table", "--plot", str(plots)]) == 0
    said = capsys.readouterr().out
    assert "step1, cpu: nothing is drawn, because fewer than two rungs have times" in said
    assert f"drawn: {plots / 'step1-cuda.svg'}" in said
    assert "on Card (2026-01-02)" in (plots / "step1-cuda.svg").read_text()


def test_rungs_of_a_cpu_share_the_fastest_ceiling():
    slow = replace(FAST, device="CPU", us=100.0, of_ceiling=10.0)  # its ceiling took 10 us
    fast = replace(slow, rung="cpu2", us=20.0, of_ceiling=90.0)
    other = replace(fast, rung="cpu3", problem="16 float32")
    absent = replace(ABSENT, problem=slow.problem)
    shares = [row.split()[5] for row in show.table([slow, fast, other]).splitlines()[1:]]
    assert shares == ["10.0", "50.0", "90.0"]
    cards = [replace(line, device="Card") for line in (slow, fast)]
    assert [row.split()[5] for row in show.table([*cards, absent]).splitlines()[1:3]] == [
        "10.0", "90.0",
    ]  # fmt: skip


def test_the_text_goes_on_behind_the_tables():
    for step in rungs.steps():
        before, after = show.text(step)
        assert before.startswith("# ")
        assert "## Exercise" in after
        assert "rung  " not in before + after
        assert "<!--" not in before + after


def test_texts_have_the_tables_of_stored_results():
    for step in rungs.steps():
        text = (step / "README.md").read_text()
        assert "<!-- ladder -->" in text
        assert show.filled(text, step) == text, "`transformer-kernels tutorial --write` is due"


def test_counters_have_a_row_for_each_rung(tmp_path):
    step = tmp_path / "step1"
    assert show.counters_table(step, tmp_path) == ""
    counts = '{"step1": {"cuda1": {"stalls": 2.25, "calls": 7}}}'
    text = f'{{"machine": "Card", "date": "today", "steps": {counts}}}'
    (tmp_path / "counters.json").write_text(text)
    table = show.counters_table(step, tmp_path)
    assert "| rung | stalls | calls |" in table
    assert "| cuda1 | 2.2 | 7 |" in table
    assert "today, Card" in table


def test_writing_fills_the_texts(tmp_path, monkeypatch):
    step = tmp_path / "step1-simple"
    step.mkdir()
    (step / "README.md").write_text("# Title\n<!-- ladder -->\nold\n<!-- /ladder -->\nrest\n")
    (step / "cpu1.cpp").touch()
    monkeypatch.setattr(command.ladder, "steps", lambda: [step])
    assert cli.main(["tutorial", "--write"]) == 0
    text = (step / "README.md").read_text()
    assert "old" not in text
    assert "cpu1" in text
    assert text.count("rung ") == 1  # no table of a kind that has no rungs
    assert text.endswith("<!-- /ladder -->\nrest\n")
