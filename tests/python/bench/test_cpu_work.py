# SPDX-License-Identifier: MIT
"""The work of ops on a CPU, as their references and declarations tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transformer_kernels.bench import analysis, cpu_work
from transformer_kernels.bench.cases import all_ops
from transformer_kernels.hardware import Plan
from transformer_kernels.measure.schema import Row

SHAPE = (64, 768)
COUNT = 64 * 768


def _row(op: str, pass_: str = "forward", shape: tuple[int, ...] = SHAPE, **other: object) -> Row:
    row = Row(
        op, pass_, "float32", None, list(shape), "ours", "fresh", 10.0, 10.0, 10.0, 9, 1000, 0.0,
        None, None, None, "wall clock", False,
    )  # fmt: skip
    return replace(row, **other)  # type: ignore[arg-type]


def _plan(row: Row, threads: int = 2) -> Plan:
    case = all_ops()[row.op]
    return cpu_work.add_work(analysis.plan_of(row, case), row, case, 2, threads)


@pytest.mark.parametrize(
    ("op", "pass_", "expected"),
    [
        ("gelu", "forward", 1),
        ("gelu", "backward", 2),
        ("silu", "backward", 1),
        ("relu", "forward", 0),
        ("softmax", "forward", 1),
        ("softmax", "backward", 0),
        ("layer_norm", "backward", 0),
        ("cross_entropy", "forward", 1),
    ],
)
def test_exponentials_are_those_of_the_reference(op: str, pass_: str, expected: int) -> None:
    found, operations = cpu_work.counted(all_ops()[op], pass_, SHAPE)
    assert round(found / COUNT) == expected
    assert operations >= COUNT


def test_linear_layers_compute_on_their_results_alone() -> None:
    exponentials, operations = cpu_work.counted(all_ops()["linear_act"], "forward", (8, 32, 16))
    assert exponentials == 8 * 16
    assert 8 * 16 <= operations < 16 * 8 * 16


def test_ops_whose_reference_does_not_tell_have_no_count() -> None:
    assert cpu_work.counted(all_ops()["embedding"], "forward", (8, 16, 50, 32)) == (0, 0)


def test_other_work_is_that_of_the_dtype_and_the_op() -> None:
    wide, narrow = _plan(_row("gelu")), _plan(_row("gelu", dtype="bfloat16"))
    assert "converted" not in wide.work
    assert narrow.work["converted"] == 2 * COUNT
    assert narrow.bytes == wide.bytes / 2 == 4 * COUNT
    assert _plan(_row("dropout")).work["random"] == COUNT
    quantised = _plan(_row("quantized_linear", shape=(4, 256, 128)))
    assert (quantised.flops, quantised.work["converted"]) == (2 * 4 * 256 * 128, 256 * 128)


def test_blocks_on_the_edge_of_a_mask_are_whole() -> None:
    full, causal = (
        _plan(_row(op, shape=(1, 256, 4, 64))) for op in ("attention", "causal_attention")
    )
    assert causal.flops / full.flops == pytest.approx((256 + 128) / 512, rel=0.01)
    assert causal.exponentials / full.exponentials == pytest.approx((256 + 128) / 512, rel=0.01)


def test_one_thread_has_the_longest_block() -> None:
    assert _plan(_row("gelu"), threads=1).longest == 1
    assert _plan(_row("gelu"), threads=2).longest == 0


def test_only_fresh_results_beyond_the_allocators_limit_have_new_pages() -> None:
    large = _row("gelu", shape=(16384, 1024))
    assert _plan(large).pages == 16384 * 1024 * 4 // 4096
    assert _plan(replace(large, outputs="reused")).pages == 0
    assert _plan(_row("gelu", shape=(4096, 1024))).pages == 0
