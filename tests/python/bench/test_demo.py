# SPDX-License-Identifier: MIT
from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from transformer_kernels import cli
from transformer_kernels.bench.training import documentation
from transformer_kernels.measure import schema

pytest.importorskip("transformers")

EXAMPLE = Path(__file__).parents[3] / "examples" / "python" / "fuse_gpt2.py"


def _demo(*arguments: str) -> int:
    return cli.main(["demo", "--quick", "--device", "cpu", *arguments])


def test_the_text_is_bytes():
    text = documentation()
    assert text.dtype is torch.long
    assert len(text) > 100_000
    assert int(text.min()) >= 0
    assert int(text.max()) < 256


@pytest.mark.slow
def test_the_short_demo_runs_to_the_end(tmp_path, capsys):
    page, figures = tmp_path / "report.html", tmp_path / "demo.json"
    assert (
        cli.main(["demo", "--quick", "--device", "cpu", "-o", str(page), "--json", str(figures)])
        == 0
    )
    text = capsys.readouterr().out
    parts = ["SPEED-UP OF THE MODEL", "TRAINING LOSS", "SPEED-UP OVER PYTORCH",
             "KERNEL PACK BENCHMARK"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert page.read_text(encoding="utf-8").count("<svg") >= 2
    runs = schema.load(figures).training.runs
    assert [run.name for run in runs] == ["stock", "stock again", "ours"]
    assert all(run.losses[-1] < run.losses[0] for run in runs)
    assert all(abs(run.losses[0] - runs[0].losses[0]) < 0.1 for run in runs)


def test_the_short_demo_says_where_a_step_goes(tmp_path, capsys):
    figures = tmp_path / "step.json"
    assert _demo("--profile", "--json", str(figures)) == 0
    assert "A STEP OF TRAINING" in capsys.readouterr().out
    result = schema.load(figures)
    assert {row.model for row in result.step_parts} == {"stock", "ours"}
    assert result.ceilings.copy_gbps > 0


def test_the_short_demo_races_whole_steps(tmp_path, capsys):
    figures = tmp_path / "race.json"
    assert _demo("--race", "--json", str(figures)) == 0
    assert "STEPS OF TRAINING IN TURN" in capsys.readouterr().out
    rows = schema.load(figures).step_times
    assert [row.model for row in rows] == ["stock", "compiled", "ours"]
    for row in rows:
        assert 0 < row.p10_us <= row.median_us <= row.p90_us
        assert row.samples == 3
        assert row.peak_bytes > 1000


def test_the_example_holds_every_step_to_stock(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--device", "cpu", "--steps", "2"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    text = capsys.readouterr().out
    for name in ("stock", "norms", "attention", "blocks", "everything"):
        assert name in text
