# SPDX-License-Identifier: MIT
"""`transformer-kernels proposals`: stored simulations, tables, verdicts, pictures, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transformer_kernels.bench.proposals import cache, streaming, traffic, units
from transformer_kernels.bench.proposals.report import Report
from transformer_kernels.bench.proposals.traffic import Traffic
from transformer_kernels.cli import main
from transformer_kernels.hardware.proposals import cache as caches
from transformer_kernels.hardware.proposals.traces import Problem
from transformer_kernels.measure.schema import SchemaError, load

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FILES = [
    BENCHMARKS / "results" / f"{name}.json"
    for name in ("h200_attention", "h200_attention_gqa", "fpga_ops")
]
STORED = BENCHMARKS / "proposals" / "cache.json"


@pytest.fixture(scope="module")
def report() -> Report:
    *measured, runs = map(load, FILES)
    return Report(measured, traffic.load(STORED), runs.array)


def test_simulations_are_stored_and_read(tmp_path: Path) -> None:
    found = [Traffic("1x2x3x64", "forward", 0, "lru", 50, 16, True, 0.5, 256, 128)]
    traffic.save(found, tmp_path / "new" / "cache.json")
    assert traffic.load(tmp_path / "new" / "cache.json") == found


def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({"version": 0, "rows": []}))
    with pytest.raises(SchemaError, match=r"cache.json: version is 0, expected 1; .*--simulate"):
        traffic.load(path)


def test_simulate_runs_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Problem(1, 128, 2, 1, 128, causal=True)
    for name, value in {
        "_PROBLEMS": (small,), "GROUPED": small, "_WHOLE": small, "_DECODES": (), "SIZES": (1,),
        "SECTIONS": (1, 2), "_ONE_IN": 1, "_WHOLE_WAYS": (2,),
    }.items():  # fmt: skip
        monkeypatch.setattr(traffic, name, value)
    found = list(traffic.simulated())
    policies = [one.policy for one in found if one.pass_ == "forward" and one.ways == 16][:5]
    assert policies == list(caches.POLICIES)
    assert {one.section for one in found} == {0, 1, 2}
    assert {one.hashed for one in found} == {False, True}
    assert all(one.bytes >= one.least and 0 <= one.hits <= 1 for one in found)


def test_stored_traffic_is_what_the_simulator_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_PROBLEMS": (), "_DECODES": traffic._DECODES[1:], "SIZES": (100,), "SECTIONS": (),
        "_WHOLE": Problem(1, 128, 1, 1, 128, causal=True), "_WHOLE_WAYS": (),
    }.items():  # fmt: skip
        monkeypatch.setattr(traffic, name, value)
    found, stored = list(traffic.simulated()), traffic.load(STORED)
    assert len(found) == len(caches.POLICIES)
    assert all(one in stored for one in found)


def test_stored_traffic_is_between_the_least_and_todays(report: Report) -> None:
    assert len(report.sweeps) == 2 * 4 + 2
    for sweep in report.sweeps:
        for size in cache.sizes_of([sweep]):
            today, bound = sweep.bytes[size, cache.TODAY], sweep.bytes[size, cache.BOUND]
            assert sweep.least * 0.99 <= bound <= today * 1.01
            assert sweep.proposed(size) >= bound * 0.99


def test_a_larger_cache_has_less_traffic(report: Report) -> None:
    for sweep in report.sweeps:
        line = [sweep.bytes[size, cache.BOUND] for size in cache.sizes_of([sweep])]
        assert line == sorted(line, reverse=True)


def test_less_traffic_is_never_slower(report: Report) -> None:
    for sweep in report.sweeps:
        assert sweep.speed_up(report.machine, traffic.L2, sweep.least) >= 1
        today = sweep.bytes[traffic.L2, cache.TODAY]
        assert sweep.speed_up(report.machine, traffic.L2, today) == 1


def test_the_model_of_units_is_near_the_measured_times(report: Report) -> None:
    found = units.validate(report.compared, report.machine)
    rows = [row for result in report.results for row in result.rows]
    assert len(found) == sum(row.provider == "ours" for row in rows)
    assert units.median_error(found) < 0.25


def test_recorded_cycles_of_the_array_are_those_of_the_model(report: Report) -> None:
    runs = streaming.recorded(report.runs)
    assert runs
    assert all(one.cycles == one.row.cycles for one in runs)


def test_a_name_of_no_array_is_refused() -> None:
    with pytest.raises(ValueError, match="array is 'r4', expected a name such as r4c16d64n1024"):
        streaming.array_of("r4")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proposals", *map(str, FILES), "--traffic", str(STORED)]) == 0
    shown = capsys.readouterr().out
    for text in ("A CACHE FOR", "MATRIX UNITS MADE", "STREAMING DATAFLOW", "Decoding is bound"):
        assert text in shown


def test_pictures_are_written(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    one = {name: plot for name, plot in report.plots().items() if name == "proposal_streaming"}
    monkeypatch.setattr(Report, "plots", lambda _: one)
    command = ["proposals", *map(str, FILES), "--traffic", str(STORED), "-o", str(tmp_path)]
    assert main(command) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "proposal_streaming.svg", "proposal_streaming.png",
    }  # fmt: skip


def test_the_page_has_every_verdict_and_picture(report: Report) -> None:
    pytest.importorskip("matplotlib")
    page = report.page()
    for part in report.parts():
        assert part.verdict in page
    panels = len(report.sweeps) + 2 + 2
    assert page.count("<svg") == panels
