# SPDX-License-Identifier: MIT
"""A CPU's model: caches, new pages, and rates that are found again from the times they made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transformer_kernels.hardware import (
    WHAT_IFS,
    Hardware,
    Measured,
    Plan,
    cpu_of_results,
    fitted,
    left_out,
    predict,
)
from transformer_kernels.measure.schema import load

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
MEBIBYTE = 1 << 20
CPU = Hardware(
    "a CPU", 20.0, {"bfloat16": 0.4, "float32": 0.2}, 6.0, 2, 5.0,
    copies={MEBIBYTE: 100.0, 64 * MEBIBYTE: 25.0},
    rates={"operations": 120.0, "converted": 40.0, "random": 5.0}, page_us=0.3,
)  # fmt: skip


def test_a_copy_is_as_fast_as_its_cache() -> None:
    def gbps(mebibytes: int) -> float:
        size = mebibytes * MEBIBYTE
        return size / CPU.copy_us(size) / 1e3

    assert gbps(1) == pytest.approx(100.0)
    assert gbps(8) == pytest.approx(50.0)  # half way between the sizes' logarithms
    assert gbps(64) == gbps(1024) == pytest.approx(25.0)
    faster = WHAT_IFS["memory twice as fast"](CPU)
    assert faster.copy_us(MEBIBYTE) == pytest.approx(CPU.copy_us(MEBIBYTE) / 2)


def test_nothing_hides_new_pages() -> None:
    plan = Plan(bytes=MEBIBYTE, work={"random": 1e6})
    before, after = predict(plan, CPU), predict(replace(plan, pages=100), CPU)
    assert before.parts["random"] == pytest.approx(200.0)
    assert after.us - before.us == pytest.approx(100 * CPU.page_us)


def _between(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _calls() -> list[Measured]:
    """Calls that use each resource for most of their time, and their times on that CPU."""
    found = []
    for dtype in ("bfloat16", "float32"):
        flops = [_between(1e9, 1e11) for _ in range(8)]
        found += [Plan(bytes=MEBIBYTE, flops=count, dtype=dtype) for count in flops]
    for name in CPU.rates:
        amounts = [_between(1e7, 1e9) for _ in range(8)]
        found += [Plan(bytes=MEBIBYTE, work={name: amount}) for amount in amounts]
    for _ in range(8):
        found.append(Plan(bytes=MEBIBYTE, exponentials=_between(1e7, 1e9)))
        found.append(Plan(bytes=MEBIBYTE, pages=int(_between(1e3, 1e5))))
    return [Measured(f"op {i % 3}", "a kernel", p, predict(p, CPU).us) for i, p in enumerate(found)]


def test_rates_are_found_again_from_the_times_that_they_made() -> None:
    start = replace(
        CPU, products={"bfloat16": 0.1, "float32": 0.1}, exponentials=20.0,
        rates=dict.fromkeys(CPU.rates, 30.0), page_us=1.0,
    )  # fmt: skip
    found = fitted(start, _calls())
    assert found.products == pytest.approx(CPU.products, rel=0.1)
    assert found.rates == pytest.approx(CPU.rates, rel=0.1)
    assert (found.exponentials, found.page_us) == pytest.approx((6.0, 0.3), rel=0.1)
    assert found.origins["rates"] == "fitted to the ops' times"
    assert max(map(abs, left_out(start, _calls(), "op"))) < 0.2


def test_a_rate_that_no_call_needs_stays() -> None:
    calls = [call for call in _calls() if not call.plan.work]
    assert fitted(CPU, calls).rates == CPU.rates
    blind = left_out(replace(CPU, exponentials=0.1), calls, "kernel")  # which is that of all calls
    assert max(blind) > 1


def test_caches_of_a_stored_cpu_are_faster_than_its_memory() -> None:
    machine = cpu_of_results([load(RESULTS / "epyc_avx2_2cores.json")])
    sizes = sorted(machine.copies)
    assert machine.copies[sizes[0]] > 2 * machine.copies[sizes[-1]]
    assert machine.copy_gbps == machine.copies[sizes[-1]]
    assert machine.units == 2
    assert machine.origins["copies"] == "measured"


def test_results_without_copies_are_refused() -> None:
    result = load(RESULTS / "epyc_avx2_attention.json")
    rows = [row for row in result.rows if row.provider != "copy"]
    with pytest.raises(ValueError, match="analyze: no copies on AMD EPYC"):
        cpu_of_results([replace(result, rows=rows)])
