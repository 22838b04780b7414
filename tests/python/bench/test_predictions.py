# SPDX-License-Identifier: MIT
"""The table of predicted times: errors, and which code is said to be faster."""

from __future__ import annotations

import pytest

from transformer_kernels.bench import predictions
from transformer_kernels.measure.schema import PredictedRow, from_json, to_json

ROWS = [
    PredictedRow("one", "norm", "both", 100.0, 50.0, 110.0, 60.0),
    PredictedRow("one", "norm", "forward", 100.0, 80.0, 90.0, 100.0),  # the wrong one
    PredictedRow("two", "sum_norm", "both", 100.0, 95.0, 70.0, 80.0),  # within noise
]


def test_lines_have_medians_and_right_signs(make_result):
    result = make_result(predictions=ROWS, settings={"threads": "1"})
    table = predictions.lay_out(from_json(to_json(result)))
    assert "2 models" in table.subtitle
    assert [list(line) for line in table.body] == [
        ["norm", "2", "10.0%", "22.5%", "25%", "1 of 2"],
        ["sum norm", "1", "30.0%", "15.8%", "30%", "-"],
        ["all", "3", "10.0%", "20.0%", "30%", "1 of 2"],
    ]


def test_savings_within_noise_are_not_decided():
    assert [predictions.is_decided(row) for row in ROWS] == [True, True, False]
    assert predictions.saving(100.0, 25.0) == pytest.approx(0.75)
