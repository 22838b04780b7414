# SPDX-License-Identifier: MIT
"""The model of matrix units against a grid that is simulated clock by clock, with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from transformer_kernels.hardware.proposals.units import (
    PRODUCTS,
    Unit,
    attention_tile,
    product_cycles,
)


def _multiplied(x: Tensor, weight: Tensor, unit: Unit) -> tuple[Tensor, int]:
    """(m, k) x (k, n) on one grid, and its clocks. In every clock each place multiplies the number
    that came from its left, adds the sum that came from above, and hands both on. A number carries
    its part, so that the next part can follow while this one is still on its way."""
    (m, k), n = x.shape, weight.shape[1]
    rows, columns = unit.rows, unit.columns
    parts = [(i, j) for i in range(0, k, rows) for j in range(0, n, columns)]
    step = max(m, rows)  # a part is held before the next one can be
    out = torch.zeros(m, n, dtype=x.dtype)
    right: dict[tuple[int, int], tuple[int, int]] = {}  # place -> (part, row of x) that is there
    down: dict[tuple[int, int], float] = {}
    clock = left = 0
    wanted = m * columns * len(parts)
    while left < wanted:
        came, sums = {}, {}
        for row in range(rows):
            part, entered = divmod(clock - row, step)
            if 0 <= part < len(parts) and entered < m:
                came[row, 0] = (part, entered)
        came |= {(r, c + 1): tag for (r, c), tag in right.items() if c + 1 < columns}
        for (r, c), (part, i) in came.items():
            at, to = parts[part][0] + r, parts[part][1] + c
            exists = at < k and to < n
            product = float(x[i, at] * weight[at, to]) if exists else 0.0
            sums[r, c] = down.get((r - 1, c), 0.0) + product
            if r == rows - 1:
                left += 1
                if to < n:
                    out[i, to] += sums[r, c]
        right, down = came, sums
        clock += 1
    return out, clock


@pytest.mark.parametrize(
    ("m", "n", "k", "rows", "columns"),
    [(4, 2, 2, 2, 2), (5, 6, 4, 2, 3), (1, 1, 1, 3, 4), (2, 5, 7, 4, 2), (7, 3, 5, 2, 4)],
)
def test_cycles_of_a_product(m: int, n: int, k: int, rows: int, columns: int) -> None:
    unit = Unit(rows, columns, grids=1)
    x, weight = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64)
    out, clocks = _multiplied(x, weight, unit)
    torch.testing.assert_close(out, x @ weight)
    assert clocks == product_cycles(m, n, k, unit)


def test_grids_share_the_parts() -> None:
    one, four = (Unit(16, 16, grids=grids) for grids in (1, 4))
    fill = 16 + 16 - 2
    assert product_cycles(100, 64, 64, one) - fill == 4 * (product_cycles(100, 64, 64, four) - fill)


@pytest.mark.parametrize("pass_", PRODUCTS)
def test_softmax_bounds_where_exponentials_are_few(pass_: str) -> None:
    few = attention_tile(192, 128, 64, Unit(exponentials=1), pass_)
    assert few.softmax == 192 * 128
    assert few.total == few.softmax + 0.5 * few.products
    hidden = attention_tile(192, 128, 64, Unit(exponentials=1, shown=0), pass_)
    assert hidden.total == few.softmax


@pytest.mark.parametrize("pass_", PRODUCTS)
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_no_unit_is_used_more_than_whole(pass_: str, dim: int) -> None:
    for unit in (Unit(), Unit(32, 64, 1), Unit(128, 128, 1), replace(Unit(), exponentials=1e9)):
        best = attention_tile(64, 128, dim, replace(unit, shown=0), pass_)
        assert 0 < attention_tile(64, 128, dim, unit, pass_).utilization <= best.utilization <= 1


def test_operands_of_a_grid_stream_through_its_edges() -> None:
    assert Unit(16, 8, 1).operand_bytes == 16 * 2 + 8 * 4
    assert Unit(16, 8, 16).operand_bytes > Unit(128, 16, 1).operand_bytes
