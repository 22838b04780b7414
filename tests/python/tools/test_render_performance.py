# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import render_performance
from transformer_kernels.measure.schema import Result, Row


def test_the_document_and_its_pictures_are_fresh() -> None:
    assert render_performance.stale() == [], "tools/render_performance.py is due"


def test_each_picture_is_shown() -> None:
    text = render_performance.DOCUMENT.read_text()
    for path, _, _ in render_performance.pictures():
        if "step5" not in path.name:
            assert f"(docs/pictures/{path.name})" in text


def test_a_stale_picture_or_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, step, kind = next(render_performance.pictures())
    copy, document = tmp_path / path.name, tmp_path / "PERFORMANCE.md"
    monkeypatch.setattr(render_performance, "pictures", lambda: [(copy, step, kind)])
    monkeypatch.setattr(render_performance, "DOCUMENT", document)
    request = "<!-- rivals: h200_rope.json -->\n<!-- /rivals -->\n"
    document.write_text(render_performance.written(request))
    assert render_performance.stale() == [path.name]
    render_performance.draw(copy, step, kind)
    assert render_performance.stale() == []
    document.write_text(request)
    copy.write_text("sha256:0")
    assert render_performance.stale() == ["PERFORMANCE.md", path.name]


def test_rivals_are_means_over_the_problems(
    make_row: Callable[..., Row], make_result: Callable[..., Result]
) -> None:
    rows = []
    for shape, ours, torch, other in (([1, 8], 10.0, 40.0, 20.0), ([2, 8], 10.0, 10.0, 80.0)):
        times = {"ours": ours, "torch": torch, "liger": other}
        rows += [make_row(name, us, shape=shape) for name, us in times.items()]
    rows.append(make_row("copy", 9.0, shape=[1, 8]))
    text = render_performance.rivals([make_result(rows)])
    # PyTorch's 4 and 1; the best rival's 2 and 1.
    line = "| layer_norm | bfloat16 | forward | 2 | 90 % | 2.00 | 1.41 | 1.00 |"
    assert line in text.splitlines()
    assert "Test CPU, 2026-01-02" in text


def test_problems_in_which_a_rival_is_faster_are_counted(
    make_row: Callable[..., Row], make_result: Callable[..., Result]
) -> None:
    times = (([1, 8], 80.0), ([2, 8], 98.0), ([3, 8], 50.0))  # PyTorch's; ours are 100
    rows = [make_row("torch", us, shape=shape) for shape, us in times]
    rows += [make_row("ours", 100.0, shape=shape) for shape, _ in times]
    text = render_performance.slower([make_result(rows)])
    line = "| layer_norm | forward | Test CPU | 2 of 3 | 0.50 | 3x8, bfloat16 | PyTorch |"
    assert line in text.splitlines()
    assert "A rival is faster in 2 of 3 problems" in text


def test_a_name_without_a_result_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PERFORMANCE.md asks for none.json"):
        render_performance.results("none.json")


def test_gains_of_patterns_are_ranges() -> None:
    result = render_performance.load(render_performance.RESULTS / render_performance.PREDICTIONS)
    text = render_performance.fusions(result)
    rows = [r for r in result.predictions if (r.pattern, r.pass_) == ("mlp", "both")]
    gains = [row.stock_us / row.ours_us for row in rows]
    assert f"| `mlp` | {len(rows)} | {min(gains):.2f} to {max(gains):.2f} |" in text
