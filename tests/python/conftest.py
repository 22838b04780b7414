# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from transformer_kernels.measure.schema import (
    SCHEMA_VERSION,
    Ceilings,
    HostRow,
    Machine,
    Result,
    Row,
    Skip,
    Training,
    TrainingRun,
)
from transformer_kernels.testing.processes import run_together, unable

MakeRow = Callable[..., Row]
MakeResult = Callable[..., Result]
Cases = Sequence[Callable[[], None]]


def _row(provider: str = "ours", median: float = 100.0, spread: float = 0.01, **changes) -> Row:
    is_copy = provider == "copy"
    fields = {
        "op": "layer_norm",
        "pass_": "forward",
        "dtype": "bfloat16",
        "weight_dtype": "bfloat16",
        "shape": [8192, 768],
        "provider": provider,
        "outputs": "reused" if is_copy else "fresh",
        "median_us": median,
        "p10_us": median * (1 - spread),
        "p90_us": median * (1 + spread),
        "samples": 15,
        "bytes": 25_168_896,
        "gbps": 25_168_896 / median / 1e3,
        "pct_copy": None if is_copy else 90.0,
        "error": None if is_copy else 2e-3,
        "kernel": None,
        "timer": "wall clock",
        "cold": False,
    }
    return Row(**{**fields, **changes})


def _result(rows: list[Row] | None = None, **changes) -> Result:
    fields = {
        "schema_version": SCHEMA_VERSION,
        "date": "2026-01-02T03:04:05+00:00",
        "machine": Machine("cpu", "Test CPU", "Test CPU", 2, 8.0, "Linux x86_64"),
        "versions": {"torch": "2.13.0"},
        "settings": {"timer": "wall clock"},
        "ceilings": Ceilings(100.0, 1 << 28, 0.5, 1024, "float32"),
        "rows": rows if rows is not None else [],
    }
    return Result(**{**fields, **changes})


@pytest.fixture
def make_row() -> MakeRow:
    return _row


@pytest.fixture
def make_result() -> MakeResult:
    return _result


@pytest.fixture
def full_result() -> Result:
    """A result with every part, over two ops, passes and shapes."""
    rows = [
        _row(provider, time * (1 + size), op=op, pass_=pass_, shape=[1024 << size, 768],
             bytes=3_000_000 << size)
        for op in ("layer_norm", "softmax")
        for pass_ in ("forward", "backward")
        for size in range(3)
        for provider, time in (("copy", 90.0), ("torch", 240.0), ("quack", 110.0), ("ours", 100.0))
    ]  # fmt: skip
    stock = TrainingRun("stock", [5.0, 4.0, 3.5], 3000.0)
    norms = TrainingRun("norms", [5.0, 4.125, 3.5], 4000.0)
    attention = TrainingRun("attention", [5.0, 3.75, 3.5], 5000.0)
    return _result(
        rows,
        skipped=[Skip("all", "liger", "runs on a GPU only")],
        host=[HostRow("softmax", p, False, 2.0, 1.9, 2.1) for p in ("torch", "ours")],
        training=Training("GPT-2 <tiny>", [stock, norms, attention], "a sample & more"),
    )


@pytest.fixture
def together(device: str, tmp_path: Path) -> Callable[..., None]:
    """Runs cases in four processes on the CPU, and on four cards; on two cards, those of a pair."""

    def run(cases: Cases, pair: Cases = ()) -> None:
        reason = unable(4, device)
        if reason is None:
            run_together(cases, 4, tmp_path, device)
        elif pair and unable(2, device) is None:
            run_together(pair, 2, tmp_path, device)
        else:
            pytest.skip(reason)

    return run
