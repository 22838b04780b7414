# SPDX-License-Identifier: MIT
"""Every body of the multiplier has the values and the latency of its definition."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from setup_env import ROOT

BODIES = {
    "any part": ["fpga/rtl/multiplier.sv"],
    "ECP5": ["fpga/rtl/multiplier_ecp5.sv", "fpga/sim/mult18x18d.sv"],
    "Xilinx": ["fpga/rtl/multiplier_xilinx.sv"],
}
# The block that holds the product, and what else may be there.
SYNTHESIS = {
    "ECP5": ("synth_ecp5", {"MULT18X18D": 1}),
    "Xilinx": ("synth_xilinx -family xc7 -noiopad -noclkbuf", {"DSP48E1": 1}),
}


def run(command: list[str]) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("verilator") is None, reason="Verilator is not installed")
@pytest.mark.parametrize("body", BODIES)
def test_every_body_agrees_with_its_definition(body: str, tmp_path: Path) -> None:
    options = ["--binary", "-Wno-lint", "--top-module", "multiplier_test"]
    sources = ["fpga/sim/multiplier_test.sv", *BODIES[body]]
    run(["verilator", *options, "--Mdir", str(tmp_path), "-o", "test", *sources])
    assert "cycles agree" in run([str(tmp_path / "test")])


@pytest.mark.skipif(shutil.which("yosys") is None, reason="Yosys is not installed")
@pytest.mark.parametrize("body", SYNTHESIS)
@pytest.mark.parametrize("width", [8, 18])
def test_a_product_takes_one_block_and_no_register_outside_it(
    body: str, width: int, tmp_path: Path
) -> None:
    synthesis, expected = SYNTHESIS[body]
    script = [
        f"read_verilog -sv {BODIES[body][0]}",
        f"chparam -set A {width} -set B {width} multiplier",
        f"{synthesis} -top multiplier",
        f"tee -o {tmp_path}/cells.json stat -json",
    ]
    run(["yosys", "-q", "-p", "; ".join(script)])
    cells = json.loads((tmp_path / "cells.json").read_text())["design"]["num_cells_by_type"]
    # A constant 0 or 1 is a cell of some parts.
    assert {n: c for n, c in cells.items() if not re.fullmatch("GND|VCC|VLO|VHI", n)} == expected
