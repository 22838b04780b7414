# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from transformer_kernels.bench.compare import Verdict, compare, has_regression, judge


@pytest.mark.parametrize(
    ("before", "after", "spread", "expected"),
    [
        (100, 100, 0.01, Verdict.SAME),
        (100, 104, 0.001, Verdict.SAME),  # apart, but within the tolerance
        (100, 96, 0.001, Verdict.SAME),
        (100, 120, 0.01, Verdict.SLOWER),
        (100, 80, 0.01, Verdict.FASTER),
        (100, 120, 0.2, Verdict.AMBIGUOUS),
        (100, 85, 0.2, Verdict.AMBIGUOUS),
        (0.5, 0.6, 0.01, Verdict.SLOWER),
    ],
)
def test_verdict_from_medians_and_spread(make_row, before, after, spread, expected):
    rows = make_row(median=before, spread=spread), make_row(median=after, spread=spread)
    assert judge(*rows, tolerance=0.05) is expected


def test_the_verdict_is_fair_in_both_directions(make_row):
    a, b = make_row(median=100), make_row(median=110)
    assert judge(a, b) is Verdict.SLOWER
    assert judge(b, a) is Verdict.FASTER


def test_a_wider_tolerance_forgives(make_row):
    assert judge(make_row(median=100), make_row(median=110), tolerance=0.2) is Verdict.SAME


def test_rows_pair_by_problem_and_provider(make_row, make_result):
    before = make_result([make_row(median=100), make_row(median=100, op="softmax")])
    after = make_result([make_row(median=200, op="softmax"), make_row(median=50)])
    verdicts = {c.row.op: c.verdict for c in compare(before, after)}
    assert verdicts == {"layer_norm": Verdict.FASTER, "softmax": Verdict.SLOWER}


@pytest.mark.parametrize(
    "changes",
    [
        {"pass_": "backward"},
        {"dtype": "float32"},
        {"weight_dtype": "float32"},
        {"shape": [1, 768]},
        {"outputs": "reused"},
    ],
)
def test_a_different_problem_is_missing_and_new(make_row, make_result, changes):
    comparisons = compare(make_result([make_row()]), make_result([make_row(**changes)]))
    assert [c.verdict for c in comparisons] == [Verdict.MISSING, Verdict.NEW]
    assert all(c.ratio is None for c in comparisons)
    assert not has_regression(comparisons)


def test_rivals_count_only_when_asked_for(make_row, make_result):
    before, after = make_result([make_row("torch", 100)]), make_result([make_row("torch", 300)])
    assert compare(before, after) == []
    assert has_regression(compare(before, after, providers=["torch"]))


def test_by_ceiling_takes_the_drift_of_the_machine_out(make_row, make_result):
    before = make_result([make_row(median=100, pct_copy=90.0)])
    drifted = make_result([make_row(median=150, pct_copy=90.0)])
    worse = make_result([make_row(median=100, pct_copy=60.0)])
    assert has_regression(compare(before, drifted))
    assert compare(before, drifted, by_ceiling=True)[0].verdict is Verdict.SAME
    assert compare(before, worse, by_ceiling=True)[0].ratio == pytest.approx(1.5)
    assert has_regression(compare(before, worse, by_ceiling=True))
