# SPDX-License-Identifier: MIT
"""The CPU in hand: it is measured once, kept for later processes, and never in the way."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from transformer_kernels import _library, hardware
from transformer_kernels.cli import main
from transformer_kernels.hardware import measure
from transformer_kernels.hardware.kept import keep

pytestmark = pytest.mark.skipif(not _library.has_kernels, reason="there is no library")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache; measuring takes a moment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "_SIZES", (1 << 12, 1 << 16))
    monkeypatch.setattr(measure, "_ROUNDS", 2)
    monkeypatch.setattr(measure, "_SECONDS", 0.0)
    monkeypatch.setattr(measure, "_COUNT", 1 << 10)
    monkeypatch.setattr(measure, "_MATRIX", 32)
    monkeypatch.setattr(measure, "_NEW_BYTES", 1 << 20)
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
def test_what_was_measured_is_kept() -> None:
    assert hardware.kept("cpu") is None
    found = hardware.measure_cpu()
    assert hardware.kept("cpu") == found
    assert found.units == torch.get_num_threads()
    rates = (*found.copies.values(), *found.products.values(), *found.rates.values())
    assert min(*rates, found.exponentials, found.launch_us) > 0
    assert found.page_us >= 0
    assert set(found.origins) == {field.name for field in fields(found)}
    plan = hardware.Plan(
        bytes=1 << 14, flops=1e6, exponentials=1e3, pages=2, work=dict.fromkeys(found.rates, 1e3)
    )
    assert hardware.predict(plan, found).us > found.launch_us


@pytest.mark.usefixtures("cache")
def test_other_numbers_of_threads_are_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware.measure_cpu()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert hardware.kept("cpu") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"machine": 1}', '{"machine": {"name": "half", "copies": {"x": 1}}}'],
)
def test_a_corrupt_file_counts_as_none(text: str, cache: Path) -> None:
    found = hardware.measure_cpu()
    (file,) = (cache / "transformer_kernels" / "hardware").iterdir()
    file.write_text(text)
    assert hardware.kept("cpu") is None
    keep(found)
    assert hardware.kept("cpu") == found


def test_a_cache_that_cannot_be_written_keeps_nothing(cache: Path) -> None:
    cache.write_text("")  # where the folder would be
    assert hardware.measure_cpu().copies
    assert hardware.kept("cpu") is None


@pytest.mark.usefixtures("cache")
def test_the_command_shows_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--measure", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    for text in ("MACHINE (", "products", "copy 4 KiB", "measured"):
        assert text in shown
    assert main(["analyze", "--device", "cpu"]) == 0  # what was kept
    assert capsys.readouterr().out == shown
