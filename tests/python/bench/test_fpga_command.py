# SPDX-License-Identifier: MIT
"""`transformer-kernels fpga`: its clocks, its table and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from transformer_kernels import cli
from transformer_kernels._library import has_kernels
from transformer_kernels.bench import fpga
from transformer_kernels.measure import machine, schema

needs_library = pytest.mark.skipif(not has_kernels, reason="needs the native library")


def test_clocks_are_those_that_were_routed(tmp_path: Path) -> None:
    rows = [{"set": "r2c4d64n256", "part": "ecp5-25f", "mhz": 111.5}]
    (tmp_path / "fpga_parts.json").write_text(json.dumps({"area": rows}))
    (tmp_path / "fpga_ops.json").write_text(json.dumps({"array": []}))
    clocks = fpga.read_clocks(tmp_path)
    assert clocks == {"r2c4d64n256": [fpga.Clock("ecp5-25f", 111.5)]}
    assert fpga.read_clocks(tmp_path / "absent") == {}


@needs_library
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fpga, "problems", lambda: [fpga._softmax((8, 32)), fpga._linear((4, 8, 9))])
    monkeypatch.setattr(fpga, "_SECONDS", 0.01)
    file = tmp_path / "fpga.json"
    assert cli.main(["fpga", "--arrays", "r2c4d64n256", "--mhz", "100", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "array: modelled, cycles / routed clock; CPU: measured" in shown
    softmax, linear = schema.load(file).array
    assert (softmax.op, softmax.utilization) == ("softmax", None)
    assert f"given │  100.0 │ {linear.cycles / 100:11.0f} │" in shown
    assert 0 < linear.relative_error < 4e-2


def test_models_have_a_time_where_their_set_was_routed() -> None:
    row = schema.ArrayModel("GPT-2", "r9", "attention", 10, 5.0, 2.0, 0.5, {"perplexity": 3.0})
    result = machine.new_result(torch.device("cpu"), settings={}, array_models=[row])
    shown = fpga.render_models(result, {})
    assert "-> 3.0000" in shown
    assert "Projection" not in shown
    shown = fpga.render_models(result, {"r9": [fpga.Clock("large", 100.0)]})
    assert "large│100.0│20000000║" in shown.replace(" ", "")
    assert "GPT-2, attention: 160000000 tokens/s" in shown
