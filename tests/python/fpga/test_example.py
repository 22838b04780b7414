# SPDX-License-Identifier: MIT
"""Runs examples/python/fpga_transformer.py in its short form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_kernels._library import has_kernels
from transformer_kernels.measure import schema

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(not has_kernels, reason="needs the native library")
def test_the_short_form(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    program = [sys.executable, "examples/python/fpga_transformer.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*program, "--quick", "--json", str(file), "--language-arrays", "r2c4d64n256"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    attention, everything = [
        row for row in schema.load(file).array_models if row.model.startswith("GPT-2")
    ]
    assert attention.cycles_per_token < everything.cycles_per_token
    for row in (attention, everything):
        found, wanted = row.accuracy["perplexity"], row.accuracy["perplexity_float32"]
        assert abs(found / wanted - 1) < 0.01
