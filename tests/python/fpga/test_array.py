# SPDX-License-Identifier: MIT
"""Compares the smallest array in Verilator with the model, and reads its coverage."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fpga import TEST
from fpga_coverage import Exclusion, Point, read_exclusions, read_points, summary
from setup_env import ROOT

SMALLEST = {"R": 1, "C": 2, "D": 16, "NK": 128, "NL": 1, "MATMUL": 0, "SOFTMAX": 0}
BODIES = {"multiplier_ecp5.sv", "multiplier_xilinx.sv"}  # of other parts
NO_VERILATOR = "Verilator is missing; install it with: apt-get install verilator"
needs_verilator = pytest.mark.skipif(shutil.which("verilator") is None, reason=NO_VERILATOR)


def run(*command: str | Path) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def rtl(top: str) -> list[Path]:
    others = BODIES if top == "byte_top" else {*BODIES, "byte_top.sv"}
    return [path for path in sorted((ROOT / "fpga/rtl").glob("*.sv")) if path.name not in others]


def compare_with_model(top: str, options: list[str | Path], folder: Path) -> str:
    """Builds array_test with Verilator's translation of the sources in `options`, and runs it."""
    values = {**SMALLEST, "BYTES": int(top == "byte_top")}
    macros = [f"-DTFK_FPGA_{name}={value}" for name, value in values.items()]
    includes = [f"-I{ROOT / path}" for path in ("csrc", "csrc/include", "fpga/sim")]
    flags = " ".join(["-std=c++20", "-O0", *macros, *includes])  # built longer than it runs
    build = ("verilator", "--cc", "--exe", "--build", "--x-initial", "unique", "--top-module", top)
    run(
        *build,
        "-CFLAGS",
        flags,
        "--Mdir",
        folder,
        "-o",
        "test",
        *options,
        *(ROOT / path for path in TEST),
    )
    return run(folder / "test")


@pytest.mark.slow
@needs_verilator
@pytest.mark.parametrize("top", ["attention_array", "byte_top"])
def test_the_smallest_array_is_the_model(top: str, tmp_path: Path) -> None:
    parameters = [f"-G{name}={value}" for name, value in SMALLEST.items()]
    assert ", 0 wrong" in compare_with_model(top, ["-Wall", *parameters, *rtl(top)], tmp_path)


def record(kind: str, signal: str, instance: str, count: int) -> str:
    fields = {
        "f": "fpga/rtl/drain.sv",
        "l": "7",
        "page": f"v_{kind}/drain",
        "o": signal,
        "h": instance,
    }
    body = "".join(f"\x01{name}\x02{value}" for name, value in fields.items())
    return f"C '{body}' {count}\n"


def test_runs_of_both_tops_are_added_up() -> None:
    points = read_points(record("toggle", "words[3]", "TOP.byte_top.array.drains", 0))
    points.update(read_points(record("toggle", "words[3]", "TOP.attention_array.drains", 2)))
    assert points == {Point("toggle", "drain.sv", 7, "words", 3, "array.drains"): 2}


def test_an_exclusion_says_bits_and_has_to_exclude_something() -> None:
    points: Counter[Point] = Counter()
    for bit in range(100):
        points[Point("toggle", "drain.sv", 7, "words", bit, "array")] = int(bit != 63)
    rules = read_exclusions("# words\ndrain.sv | words[63:60] | zeros\ndrain.sv | group | one\n")
    assert rules[0] == Exclusion("drain.sv", "words[63:60]", "zeros")
    table, wrong = summary(points, rules)
    assert "100.00 %  99 of 99, 1 more excluded" in table
    assert "excludes nothing: drain.sv group" in wrong
