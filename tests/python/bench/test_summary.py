# SPDX-License-Identifier: MIT
from __future__ import annotations

import re

from transformer_kernels.bench import summary


def _lines(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in re.split("[║│]", line)[1:-1]]
        for line in text.splitlines()
        if "│" in line
    ]


def _pair(make_row, torch, **problem):
    return [make_row("torch", torch, **problem), make_row("ours", 100, **problem)]


def test_geometric_means_by_op_and_dtype(make_row, make_result):
    rows = [
        *_pair(make_row, 200),
        *_pair(make_row, 800, shape=[1, 1]),
        *_pair(make_row, 50, pass_="backward"),
        *_pair(make_row, 300, dtype="float32"),
        *_pair(make_row, 150, op="softmax"),
    ]
    assert _lines(summary.render(make_result(rows))) == [
        ["Op", "problems", "fwd", "bwd", "all"],
        ["layer_norm bf16", "3", "4.00x", "0.50x", "2.00x"],
        ["layer_norm fp32", "1", "3.00x", "-", "3.00x"],
        ["softmax bf16", "1", "1.50x", "-", "1.50x"],
    ]


def test_only_what_both_have_run_counts(make_row, make_result):
    rows = [
        *_pair(make_row, 200),
        *_pair(make_row, 200, shape=[1, 1]),
        make_row("ours", 1, shape=[2, 2]),
        make_row("torch", 1, shape=[3, 3]),
        make_row("torch", 1, outputs="reused"),
        make_row("copy", 1),
        *[make_row(p, 10, op="attention") for p in ("cudnn", "ours")],
    ]
    assert _lines(summary.render(make_result(rows)))[1:] == [
        ["layer_norm bf16", "2", "2.00x", "2.00x"]
    ]


def test_reused_outputs_are_summed_up_apart(make_row, make_result):
    rows = [row for shape in ([1, 1], [2, 2]) for outputs, time in (("fresh", 200), ("reused", 400))
            for row in _pair(make_row, time, shape=shape, outputs=outputs)]  # fmt: skip
    assert _lines(summary.render(make_result(rows)))[1:] == [
        ["layer_norm bf16", "2", "2.00x", "2.00x"],
        ["layer_norm bf16 reused", "2", "4.00x", "4.00x"],
    ]


def test_single_problems_need_no_summary(make_row, make_result):
    rows = [*_pair(make_row, 200), *_pair(make_row, 200, op="softmax")]
    assert summary.render(make_result(rows)) is None
    assert summary.render(make_result()) is None
