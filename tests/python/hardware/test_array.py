# SPDX-License-Identifier: MIT
"""Cycles and bytes of the FPGA array by formula, against those that the array's model counts."""

from __future__ import annotations

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels._library import has_kernels
from transformer_kernels.bench.proposals.streaming import array_of
from transformer_kernels.hardware.proposals import array
from transformer_kernels.hardware.proposals.array import Array

pytestmark = pytest.mark.skipif(not has_kernels, reason="the array's model is not built")
F = tfk.functional


@pytest.fixture(params=["r2c4d64n256", "r4c16d64n1024", "r8c8d64n1024"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Array:
    monkeypatch.setenv("TFK_FPGA_ARRAY", request.param)
    return array_of(request.param)


def _same(cost: array.Cost, spent: tfk.fpga.Counters) -> None:
    assert (cost.cycles, cost.bytes) == (spent.cycles, spent.bytes_in + spent.bytes_out)


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "kv_heads", "causal"),
    [(10, 70, 2, 1, False), (33, 33, 2, 2, True), (1, 90, 4, 2, True), (20, 300, 1, 1, True),
     (300, 300, 1, 1, False)],
)  # fmt: skip
def test_attention(
    held: Array, queries: int, keys: int, heads: int, kv_heads: int, causal: bool
) -> None:
    q = torch.randn(1, queries, heads, 64)
    k, v = torch.randn(2, 1, keys, kv_heads, 64)
    with tfk.fpga.count() as spent:
        F.attention(q, k, v, causal=causal, backend="fpga")
    _same(array.attention(held, queries, keys, heads, kv_heads, causal), spent)


@pytest.mark.parametrize(("rows", "outputs", "width"), [(5, 7, 64), (40, 300, 130)])
def test_a_product(held: Array, rows: int, outputs: int, width: int) -> None:
    with tfk.fpga.count() as spent:
        F.linear(torch.randn(rows, width), torch.randn(outputs, width), backend="fpga")
    _same(array.matmul(held, rows, outputs, width), spent)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (33, 100)])
def test_softmax(held: Array, rows: int, columns: int) -> None:
    with tfk.fpga.count() as spent:
        F.softmax(torch.randn(rows, columns), -1, backend="fpga")
    _same(array.softmax(held, rows, columns), spent)


def test_the_pipeline_takes_fewer_cycles_and_bytes_than_three_operations() -> None:
    for one in (Array(4, 16, 64, 1024), Array(16, 16, 64, 1024)):
        fused, apart = array.attention(one, 512, 512), array.op_by_op(one, 512, 512)
        assert fused.cycles < apart.cycles
        assert fused.bytes < apart.bytes


def test_scores_of_a_tile_fit_a_buffer() -> None:
    assert array.score_bytes(Array(4, 16, 64, 1024), 4096) == 4 * 4 * 1024
