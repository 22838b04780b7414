# SPDX-License-Identifier: MIT
"""A card as it was measured: what is missing says where it comes from instead, and why."""

from __future__ import annotations

import builtins
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_kernels import hardware
from transformer_kernels._errors import ArgumentValueError
from transformer_kernels.bench import analysis
from transformer_kernels.cli import main
from transformer_kernels.hardware import measure_card
from transformer_kernels.hardware.kept import keep
from transformer_kernels.hardware.measure_card import Found, described
from transformer_kernels.measure.schema import load

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
KNOWN, UNKNOWN = "NVIDIA H200", "a card without a sheet"
FOUND = Found(
    units=132,
    launch_us=1.0,
    host_us=9.0,
    copies={1 << 20: 1.5, 1 << 24: 4.0, 1 << 30: 251.0},
    products={"bfloat16": 700.0, "float16": 710.0, "float32": 50.0},
    rates={"exponentials": 4000.0, "operations": 30000.0, "atomics": 500.0},
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_measured_is_described() -> None:
    card = described(KNOWN, FOUND)
    assert card.copies[1 << 24] == pytest.approx((1 << 24) / 3.0 / 1e3)  # behind the launch
    assert card.copy_gbps == card.copies[1 << 30] < card.copies[1 << 24]
    assert (card.exponentials, card.units, card.host_us) == (4000.0, 132, 9.0)
    assert set(card.rates) == {"operations", "atomics"}
    numbers = {field.name for field in fields(card)} - {"name", "origins", "page_us"}
    assert card.origins == dict.fromkeys(numbers, "measured")


def test_a_copy_that_is_hardly_more_than_a_launch_has_a_bandwidth() -> None:
    card = described(KNOWN, replace(FOUND, copies={1 << 18: 0.9, 1 << 30: 250.0}))
    assert card.copies[1 << 18] == pytest.approx((1 << 18) / 0.09 / 1e3)


def test_what_is_missing_is_the_data_sheets() -> None:
    why_not = {"float32": "no room", "exponentials": "no compiler", "atomics": "no compiler"}
    found = replace(
        FOUND, products={"bfloat16": 700.0}, rates={"operations": 30000.0}, why_not=why_not
    )
    card, sheet = described(KNOWN, found), hardware.DATASHEETS["H200"]
    assert card.exponentials == sheet.exponentials
    assert card.products == {"bfloat16": 700.0, "float32": sheet.products["float32"]}
    assert card.origins["exponentials"] == "data sheet: no compiler"
    assert card.origins["products"] == "measured; float32 data sheet: no room"
    assert card.origins["rates"] == "measured; atomics left out: no compiler"


def test_a_card_without_a_sheet_is_assumed() -> None:
    why_not = {"float32": "no room", "exponentials": "no compiler"}
    found = replace(FOUND, products={"bfloat16": 70.0}, rates={}, why_not=why_not)
    card = described(UNKNOWN, found)
    assert card.exponentials > 0
    assert card.origins["exponentials"] == "assumed: no compiler"
    assert card.products == {"bfloat16": 70.0}
    assert card.origins["products"] == "measured; float32 left out: no room"


def test_a_probe_that_fails_ends_nothing() -> None:
    def fails(message: str) -> Any:
        def probe() -> float:
            raise RuntimeError(message)

        return probe

    why_not: dict[str, str] = {}
    probes = {"a": fails("first\nsecond"), "b": fails(""), "c": lambda: 3.0}
    assert measure_card._tried(probes, why_not) == {"c": 3.0}
    assert why_not == {"a": "first", "b": "RuntimeError"}


def test_without_triton_its_rates_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load_module = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "probes_triton":
            raise ImportError("triton")
        return load_module(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    why_not: dict[str, str] = {}
    assert measure_card._rates(132, why_not) == {}
    card = described(KNOWN, replace(FOUND, rates={}, why_not=why_not))
    assert card.origins["exponentials"] == "data sheet: Triton is not installed"


def test_a_cpu_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="measure_cuda: device is cpu, expected a card"):
        hardware.measure_cuda("cpu")


def test_a_stored_card_predicts_the_stored_results() -> None:
    """The numbers that `analyze` found on the card alone are as good as those of the results."""
    card = hardware.read(RESULTS.parent / "hardware" / "h200.json")
    assert set(card.origins.values()) == {"measured"}
    results = [r for r in map(load, sorted(RESULTS.glob("h200_[l-q]*.json"))) if r.rows]
    assert analysis.median_error(analysis.compare(results, card)) < 0.15
    assert f"({card.name})" in str(analysis.measured_table(results, card))


# ---- the command --------------------------------------------------------------------------------


def _pretend(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes the command see a card of this name, which is measured as above."""

    def measure() -> hardware.Hardware:
        keep(card := described(name, FOUND))
        return card

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("transformer_kernels._times.machine_of", lambda _: name)
    monkeypatch.setattr(hardware, "measure_cuda", measure)


@pytest.mark.usefixtures("cache")
def test_the_command_measures_a_card_once_and_draws_its_roofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    _pretend(monkeypatch, KNOWN)
    assert main(["analyze", "-o", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    for text in ("MACHINE (NVIDIA H200)", "operations", "host's call", "copy 1 MiB", "measured"):
        assert text in shown
    assert (tmp_path / "plots" / "roofline.svg").stat().st_size > 0
    assert not (tmp_path / "plots" / "predicted.svg").exists()
    monkeypatch.setattr(hardware, "measure_cuda", None)  # is not called again
    assert main(["analyze"]) == 0


@pytest.mark.usefixtures("cache")
def test_a_measured_card_needs_no_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    result = load(RESULTS / "h200_products.json")
    result = replace(result, machine=replace(result.machine, device_name=UNKNOWN))
    with pytest.raises(ValueError, match="no data sheet for a card without a sheet, expected one"):
        analysis.machine_of([result], [result])
    keep(described(UNKNOWN, FOUND))
    machine = analysis.machine_of([result], [result])
    assert machine.exponentials == 4000.0
    assert machine.origins["exponentials"] == "measured"
    assert "H100" not in str(analysis.what_if_table(analysis.compare([result], machine), machine))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--measure", "some.json"], "--measure is given with some.json, expected no file"),
        (["--what-if"], "--what-if is given without files, expected some of results"),
        (["--measure", "--steps"], "--steps is given without files"),
    ],
)
def test_options_of_files_need_files(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *arguments]) == 2
    assert message in capsys.readouterr().err
