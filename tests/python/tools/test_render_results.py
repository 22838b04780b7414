# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

import render_results
from transformer_kernels.measure.schema import Machine, Result, Row, StepTime, save


def row(provider: str, shape: list[int], microseconds: float) -> Row:
    return Row(
        op="layer_norm", pass_="forward", dtype="float32", weight_dtype="float32", shape=shape,
        provider=provider, outputs="fresh", median_us=microseconds, p10_us=microseconds,
        p90_us=microseconds, samples=9, bytes=8, gbps=1.0, pct_copy=97.5, error=1e-7, kernel=None,
        timer="events", cold=True,
    )  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    machine = Machine("cpu", "A CPU", "A CPU", 2, 8.0, "Linux")
    rows = [row(p, s, 4.5) for p in ("torch", "ours") for s in ([4, 8], [16, 32])]
    save(Result(1, "2026-01-02", machine, {"torch": "2.13.0"}, {}, rows=rows), tmp_path / "a.json")
    return tmp_path


REQUEST = "before\n<!-- results: {} -->\nold\n<!-- /results -->\nafter\n"


def test_a_request_is_filled_with_the_rows_that_it_names(results: Path) -> None:
    text = render_results.filled(REQUEST.format("a.json shape=4x8"), results)
    assert "old" not in text
    assert "4x8" in text
    assert "16x32" not in text
    assert "Measured 2026-01-02 on A CPU, 2 cores, Linux, torch 2.13.0." in text
    assert text.startswith("before\n<!-- results: a.json shape=4x8 -->\n")
    assert text.endswith("<!-- /results -->\nafter\n")
    assert render_results.filled(text, results) == text


def test_a_missing_file_is_said(results: Path) -> None:
    text = render_results.filled(REQUEST.format("b.json"), results)
    assert "No b.json is stored yet" in text


def test_an_unknown_filter_is_refused(results: Path) -> None:
    with pytest.raises(SystemExit, match="filter is colour"):
        render_results.filled(REQUEST.format("a.json colour=red"), results)


def test_every_stored_result_has_a_table_with_lines() -> None:
    for path in sorted(render_results.RESULTS.glob("*.json")):
        table = render_results.drawn(render_results.load(path))
        assert len(table.splitlines()) > 7, path.name


@pytest.mark.parametrize(
    ("models", "settings", "page"),
    [
        (("stock", "fused"), {}, "fused.md"),
        (("stock", "fused, graphs"), {"dtype": "bfloat16 parameters"}, "fused.md"),
        (("stock", "ours"), {}, "gpt2.md"),
        (("stock", "fused"), {"pass": "forward pass"}, "fused_inference.md"),
        (("stock", "liger"), {"pass": "forward pass"}, "fused_inference.md"),
    ],
)
def test_forward_passes_have_a_page_of_their_own(
    models: tuple[str, ...], settings: dict[str, str], page: str
) -> None:
    machine = Machine("cpu", "A CPU", "A CPU", 2, 8.0, "Linux")
    times = [StepTime(name, 3e3, 2e3, 4e3, 9, 1) for name in models]
    result = Result(1, "2026-01-02", machine, {}, {"model": "M", **settings}, step_times=times)
    assert render_results.page_of(result) == page
    assert page in render_results.PAGES
    drawn = render_results.drawn(result)
    assert ("FORWARD PASSES" in drawn) == ("pass" in settings)
    assert ("STEPS OF TRAINING" in drawn) != ("pass" in settings)
