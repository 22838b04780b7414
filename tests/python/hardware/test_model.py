# SPDX-License-Identifier: MIT
"""The model of a machine: what bounds a call, other machines, and machines that nobody built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transformer_kernels.hardware import (
    DATASHEETS,
    WHAT_IFS,
    Hardware,
    Plan,
    like,
    of_results,
    predict,
)
from transformer_kernels.measure.schema import Ceilings, Machine, Result, Row

MACHINE = Hardware("a card", 1000.0, {"bfloat16": 100.0, "float32": 10.0}, 2000.0, 10, 3.0)
MEGABYTE, GIGAFLOP = 10**6, 1e9


def test_the_longest_resource_counts_whole_and_the_others_by_half() -> None:
    plan = Plan(bytes=40 * MEGABYTE, flops=GIGAFLOP, exponentials=16e6, launches=2)
    found = predict(plan, MACHINE)
    assert found.parts == pytest.approx(
        {"memory": 40.0, "products": 10.0, "exponentials": 8.0, "launches": 6.0}
    )
    assert found.bound == "memory"
    assert found.us == pytest.approx(6.0 + 40.0 + (10.0 + 8.0) / 2)


def test_the_host_bounds_calls_that_it_issues_slowly() -> None:
    machine = replace(MACHINE, host_us=20.0)
    graph = Plan(bytes=10 * MEGABYTE, launches=2)
    issued = replace(graph, issued=2)
    assert predict(graph, machine).us == pytest.approx(16.0)
    assert predict(issued, machine).us == 40.0
    assert predict(issued, machine).bound == "host"
    assert predict(replace(issued, bytes=100 * MEGABYTE), machine).bound == "memory"


def test_products_take_the_rate_of_their_dtype() -> None:
    wide, narrow = (
        predict(Plan(bytes=0, flops=GIGAFLOP, dtype=dtype), MACHINE).parts["products"]
        for dtype in ("float32", "float16")
    )
    assert (wide, narrow) == pytest.approx((100.0, 10.0))
    with pytest.raises(ValueError, match="a card has no rate of products in int8, only bfloat16"):
        predict(Plan(bytes=0, flops=1.0, dtype="int8"), MACHINE)


def test_a_long_block_leaves_units_idle() -> None:
    even, one_block = (
        predict(Plan(bytes=0, flops=GIGAFLOP, exponentials=1e6, longest=longest), MACHINE).parts
        for longest in (1 / 20, 1.0)
    )
    assert one_block["products"] == pytest.approx(MACHINE.units * even["products"])
    assert one_block["exponentials"] == pytest.approx(MACHINE.units * even["exponentials"])


def test_another_machine_keeps_the_ratios_of_the_data_sheets() -> None:
    sheet = replace(MACHINE, name="its sheet", copy_gbps=2000.0)
    other = replace(sheet, name="other", copy_gbps=500.0, products={"bfloat16": 50.0}, units=5)
    found = like(MACHINE, sheet, other)
    assert (found.copy_gbps, found.units, found.launch_us) == (250.0, 5, MACHINE.launch_us)
    assert found.products == {"bfloat16": 50.0}
    assert set(found.origins.values()) == {"a card, by the data sheets"}


@pytest.mark.parametrize("card", DATASHEETS)
def test_a_card_is_like_itself(card: str) -> None:
    sheet = DATASHEETS[card]
    found = like(sheet, sheet, sheet)
    assert replace(found, origins=sheet.origins) == sheet


@pytest.mark.parametrize("name", WHAT_IFS)
def test_a_better_machine_is_faster_at_what_it_is_better_at(name: str) -> None:
    resource = name.split()[0]
    plan = Plan(bytes=MEGABYTE, flops=GIGAFLOP, exponentials=1e7)
    before, after = predict(plan, MACHINE), predict(plan, WHAT_IFS[name](MACHINE))
    changed = {part for part in before.parts if before.parts[part] != after.parts[part]}
    assert changed == {resource}
    assert after.parts[resource] == pytest.approx(before.parts[resource] / 2)
    assert after.us < before.us


# ---- results ------------------------------------------------------------------------------------


def _copy(size: int, microseconds: float, cold: bool = True) -> Row:
    return Row(
        "layer_norm", "forward", "bfloat16", None, [1, size], "copy", "reused", microseconds,
        microseconds, microseconds, 9, size, 0.0, None, None, None, "CUDA graph", cold,
    )  # fmt: skip


def _result(*rows: Row) -> Result:
    machine = Machine("cuda", "NVIDIA H200", "a CPU", 2, 1.0, "Linux x86_64")
    ceilings = Ceilings(1.0, 1, 700.0, 8192, "bfloat16")
    return Result(1, "2026-11-27", machine, {}, {}, ceilings, list(rows))


def test_a_machine_from_its_copies() -> None:
    sizes = (10**6, 10**7, 10**8, 10**9)
    rows = [_copy(size, 2.5 + size / 4000e3) for size in sizes]
    warm = _copy(10**5, 1.0, cold=False)  # in the cache, where no bandwidth of memory shows
    found = of_results([_result(*rows, warm)], DATASHEETS["H200"])
    assert (found.launch_us, found.copy_gbps) == pytest.approx((2.5, 4000.0))
    assert found.products == {**DATASHEETS["H200"].products, "bfloat16": 700.0}
    assert found.origins["products"] == "measured, float32: data sheet"


def test_too_few_copies_are_refused() -> None:
    rows = [_copy(10**6, 3.0), _copy(10**6, 3.1), _copy(10**7, 9.0)]
    with pytest.raises(ValueError, match="2 sizes of copies on NVIDIA H200, expected at least 3"):
        of_results([_result(*rows)], DATASHEETS["H200"])
