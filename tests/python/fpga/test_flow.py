# SPDX-License-Identifier: MIT
"""The program behind `make fpga`: parameter sets, gates, and how it reads reports."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import fpga
import fpga_sets
from fpga_sets import Gate, read_sets
from setup_env import ROOT
from transformer_kernels.bench import area
from transformer_kernels.measure.schema import AreaRow, Machine, Result, load, save

ROW = AreaRow(
    set="r2c4d64n256", part="ecp5-25f", title="ECP5-25F, speed 6", logic=5420,
    logic_available=24288, registers=3575, dsp=24, dsp_available=28, ram=18, ram_available=56,
    mhz=121.3, seed=1,
)  # fmt: skip
MACHINE = Machine("cpu", "A CPU", "A CPU", 2, 8.0, "Linux")


@pytest.fixture
def sets() -> dict[str, fpga_sets.ParameterSet]:
    return read_sets((fpga_sets.FPGA / "sets.toml").read_text())


def test_the_name_of_a_set_says_its_parameters(sets: dict[str, fpga_sets.ParameterSet]) -> None:
    for name, chosen in sets.items():
        assert name == f"r{chosen.rows}c{chosen.lanes}d{chosen.head_dim}n{chosen.keys}"
        assert set(chosen.parts) <= set(fpga_sets.PARTS)


def test_the_library_has_the_same_sets(sets: dict[str, fpga_sets.ParameterSet]) -> None:
    header = (ROOT / "csrc/fpga/array.h").read_text()
    table = re.search(r"kParameterSets\[\] = \{(.*?)\};", header, re.DOTALL)
    assert table is not None
    rows = re.findall(r"\{([^{}]+)\}", table[1])
    written = [[int(json.loads(field)) for field in row.split(",")] for row in rows]
    assert written == [list(chosen.parameters().values()) for chosen in sets.values()]


def test_a_build_reads_one_body_of_the_multiplier() -> None:
    for part in fpga_sets.PARTS.values():
        bodies = [name for name in fpga_sets.sources(part.multiplier) if "multiplier" in name]
        assert bodies == [f"fpga/rtl/{part.multiplier}"]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (Gate(least_mhz=110, dsp=24, ram=18), []),
        (Gate(least_mhz=130, dsp=24, ram=18), ["clock is 121.3 MHz, expected at least 130"]),
        (Gate(least_mhz=110, dsp=20, ram=16), ["dsp is 24, expected 20", "ram is 18, expected 16"]),
    ],
)
def test_a_gate_names_what_misses_it(gate: Gate, expected: list[str]) -> None:
    assert fpga.failures(ROW, gate) == [f"r2c4d64n256 on ecp5-25f: {text}" for text in expected]


def test_a_row_is_read_from_the_reports_of_the_tools(
    sets: dict[str, fpga_sets.ParameterSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fpga, "BUILD", tmp_path)
    used = {"TRELLIS_COMB": (5420, 24288), "MULT18X18D": (24, 28), "DP16KD": (18, 56)}
    report = {
        "utilization": {cell: {"used": n, "available": of} for cell, (n, of) in used.items()},
        "fmax": {"clk": {"achieved": 121.27, "constraint": 126.5}},
    }
    place = tmp_path / "r2c4d64n256" / "ecp5-25f"
    place.mkdir(parents=True)
    (place / "report.json").write_text(json.dumps(report))
    cells = {"design": {"num_cells_by_type": {"TRELLIS_FF": 3575, "LUT4": 3573}}}
    (place / "cells.json").write_text(json.dumps(cells))
    assert fpga.area_row(sets["r2c4d64n256"], "ecp5-25f") == ROW


def test_the_table_shows_shares_and_leaves_out_what_a_part_lacks(tmp_path: Path) -> None:
    small = dataclasses.replace(ROW, part="ice40-hx8k", dsp=0, dsp_available=0, mhz=69.0)
    result = Result(1, "2026-01-02", MACHINE, {"Yosys": "0.23"}, {}, area=[ROW, small])
    save(result, tmp_path / "a.json")
    stored = load(tmp_path / "a.json")
    first, second = area.render(stored).splitlines()[-3:-1]
    assert "24 / 28" in first
    assert "121.3" in first
    assert "0 / 0" not in second
    assert area.provenance(stored) == "Placed and routed 2026-01-02 with Yosys 0.23; seed 1."


def test_a_missing_program_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(fpga, "SCRIPTS", Path("/nowhere"))
    with pytest.raises(fpga.StepError, match=r"no yosys; install it with: python3 tools/setup_env"):
        fpga.program("yosys")


def test_a_failed_job_ends_the_step_and_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fpga, "ROOT", tmp_path)

    def job() -> None:
        fpga.run(["ls", "/no/such/place"], tmp_path / "a.log")

    assert not fpga.run_step("lint", {"good": lambda: None, "bad": job})
    printed = capsys.readouterr().out
    assert "lint good: ok" in printed
    assert "lint bad: FAILED" in printed
    assert "No such file" in printed
