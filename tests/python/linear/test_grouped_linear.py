# SPDX-License-Identifier: MIT
"""The raw ops of layers of groups of rows: kernels against their formulas in float64, and fake
tensors against both. The numbers themselves are tested in C++ (grouped_linear_test.cpp)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.ops.linear import _grouped

LENGTHS = (3, 0, 1, 9)
GROUPS, TOKENS, TERMS, COLS = len(LENGTHS), 6, 12, 10
ROWS = sum(LENGTHS)
SWIGLU = 2


def made(*shape: int) -> Tensor:
    return torch.randn(shape)


@pytest.fixture
def given() -> dict[str, Tensor]:
    torch.manual_seed(0)
    offsets = torch.tensor((0, *LENGTHS), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return {
        "x": made(TOKENS, TERMS), "dy": made(TOKENS, COLS), "rows": made(ROWS, TERMS),
        "weight": made(GROUPS, COLS, TERMS), "up": made(GROUPS, COLS, TERMS),
        "bias": made(GROUPS, COLS), "packed": made(GROUPS, 2 * COLS, TERMS),
        "gate": made(ROWS, TERMS), "other": made(ROWS, TERMS), "factors": torch.rand(ROWS),
        "offsets": offsets, "index": torch.randint(TOKENS, (ROWS,), dtype=torch.int32),
    }  # fmt: skip


def calls(g: dict[str, Tensor]) -> dict[str, tuple[Any, Any, tuple[Any, ...]]]:
    offsets, index, factors = g["offsets"], g["index"], g["factors"]
    return {
        "forward": (
            _grouped.GROUPED_LINEAR, _grouped.grouped_linear,
            (g["x"], g["weight"], g["bias"], offsets, index, factors),
        ),
        "plain": (
            _grouped.GROUPED_LINEAR, _grouped.grouped_linear,
            (g["rows"], g["weight"], None, offsets, None, None),
        ),
        "backward": (
            _grouped.GROUPED_LINEAR_BACKWARD, _grouped.grouped_linear_gradient,
            (g["dy"], g["rows"], g["weight"], g["bias"], offsets, None, index, factors,
             True, True, True),
        ),
        "gated": (
            _grouped.GROUPED_GATED_LINEAR, _grouped.grouped_gated_linear,
            (g["x"], g["weight"], g["up"], g["bias"], g["bias"], offsets, index, SWIGLU, True),
        ),
        "packed": (
            _grouped.GROUPED_GATED_LINEAR, _grouped.grouped_gated_linear,
            (g["rows"], g["packed"], None, None, None, offsets, None, SWIGLU, True),
        ),
        "dgated": (
            _grouped.GROUPED_LINEAR_DGATED, _grouped.grouped_linear_dgated,
            (g["dy"], g["weight"], g["gate"], g["other"], offsets, index, factors, SWIGLU,
             True, True),
        ),
    }  # fmt: skip


def as_list(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def doubled(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


NAMES = ["forward", "plain", "backward", "gated", "packed", "dgated"]


@pytest.mark.parametrize("name", NAMES)
def test_raw_ops_are_their_formulas(name: str, given: dict[str, Tensor]) -> None:
    op, formula, arguments = calls(given)[name]
    expected = as_list(formula(*map(doubled, arguments)))
    for got, wanted in zip(as_list(op(*arguments)), expected, strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fake_results_are_like_real_ones(name: str, given: dict[str, Tensor]) -> None:
    op, _, arguments = calls(given)[name]
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_rows_out_of_range_are_refused(given: dict[str, Tensor]) -> None:
    index = given["index"].clone()
    index[2] = TOKENS
    with pytest.raises(
        RuntimeError,
        match="IndexError: grouped_linear: x_rows holds 6, expected a row of x, which has 6",
    ):
        _grouped.GROUPED_LINEAR(given["x"], given["weight"], None, given["offsets"], index, None)


def test_columns_of_x_and_of_the_weight_have_to_agree(given):
    raw = torch.ops.transformer_kernels.grouped_linear_backward
    rows = given["rows"]
    dy, wide = made(ROWS, COLS), made(ROWS, TERMS + 4)
    arguments = (given["weight"], None, given["offsets"], None, None, None, True, True, False)
    raw(dy, rows, *arguments)
    with pytest.raises(RuntimeError, match=f"x has {TERMS + 4} columns, expected {TERMS}"):
        raw(dy, wide, *arguments)


def test_operations_of_gradients_are_counted():
    dy, dx, dweight = made(7, 24), made(7, 16), made(2, 24, 16)
    empty, one = made(0), 2.0 * 7 * 24 * 16
    for found, expected in (((dx, empty), one), ((empty, dweight), one), ((dx, dweight), 2 * one)):
        given = dict(zip(("dx", "dweight"), found, strict=True))
        assert _grouped._gradients("backward", {"dy": dy, **given}) == expected
