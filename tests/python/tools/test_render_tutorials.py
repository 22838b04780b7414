# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

import render_tutorials
from transformer_kernels.tutorial import rungs, show
from transformer_kernels.tutorial.rungs import Line

STEPS = {step.name: step for step in rungs.steps()}


def test_each_step_has_a_page() -> None:
    pages = sorted(path.stem for path in render_tutorials.PAGES.glob("*.md"))
    assert pages == sorted(STEPS)
    overview = (render_tutorials.PAGES.parent / "ladders.md").read_text()
    for name in STEPS:
        assert f"_generated/ladder_{name}.md" in (render_tutorials.PAGES / f"{name}.md").read_text()
        assert f"\nladders/{name}\n" in overview


def test_a_page_has_text_staircase_sources_and_exercise() -> None:
    text = render_tutorials.page(STEPS["step1-simple"])
    assert text.startswith("# Elementwise kernels")
    assert text.count("<svg") == 2  # of the CPU and of the GPU
    for source in ("cpu3_threads.cpp", "cuda4_grid_stride.cu", "exercise.cpp"):
        assert f":::{{dropdown}} {source}\n" in text
    assert "## Exercise" in text
    assert "---- frame" not in text
    assert "quick_gelu" in render_tutorials.page(STEPS["step5-integration"])  # its exercise


def test_links_lead_to_pages_or_are_text() -> None:
    text = "[a](../../docs/levels.md#x) [b](../step2-reduction/README.md) [c](x.cpp) [d](https://e)"
    assert render_tutorials.relinked(text, STEPS["step1-simple"]) == (
        "[a](../levels.md#x) [b](step2-reduction.md) c [d](https://e)"
    )


def test_stairs_have_the_rungs_of_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [Line(f"cpu{i}_x", "CPU", problem, 100.0 / i, 1.0, "GB/s", 50.0, 0.0)
             for i, problem in ((1, "8 float32"), (2, "8 float32"), (3, "16 float32"))]  # fmt: skip
    ladder = show.Ladder("Machine", "2026-01-02", {"step1-simple": lines})
    monkeypatch.setattr(show, "stored", lambda _kind: ladder)
    plot = render_tutorials.staircase(STEPS["step1-simple"], "cpu")
    assert plot is not None
    assert plot.caption == "step1-simple, 8 float32, on Machine (2026-01-02)"
    with plot.figure() as drawn:
        stairs = drawn.axes[0].lines[0].get_ydata()
    assert list(stairs) == [100.0, 50.0, 50.0]
    ladder.lines["step1-simple"] = lines[:1]
    assert render_tutorials.staircase(STEPS["step1-simple"], "cpu") is None
