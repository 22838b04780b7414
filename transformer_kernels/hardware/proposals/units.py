# SPDX-License-Identifier: MIT
"""Matrix units, and softmax between the two products of attention: cycles of one multiprocessor.

A multiprocessor has grids of multipliers. A grid holds a part of one operand, ``rows`` x
``columns`` of it, and the rows of the other stream through (a weight-stationary systolic array).
The shapes of the operands decide how much of a grid is used. Exponentials run on special function
units beside it, and the rest of softmax on the vector lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..model import SHOWN

# Products of a score in each pass.
PRODUCTS = {"forward": 2, "backward": 5}
# Vector operations of a score beside its exponential. Forward: maximum, scale and shift, sum, half
# a conversion. Backward: scale and shift, dP - delta, times P, two halves of conversions.
_VECTOR = {"forward": 3.5, "backward": 4.0}
_ELEMENT, _SUM = 2, 4  # bytes of operands and of sums


@dataclass(frozen=True)
class Unit:
    """The arithmetic of a multiprocessor. By default it is that of Hopper, whose products take
    steps of 16 in k and of 8 in n.

    Args:
        rows, columns: of a grid's multipliers, and of the operand that it holds.
        grids: of them.
        exponentials: a clock.
        lanes: vector operations a clock.
        shown: the share of the shorter of products and softmax that does not run beside the longer
            one; 0 where softmax is a stage of the unit.
    """

    rows: int = 16
    columns: int = 8
    grids: int = 16
    exponentials: float = 16
    lanes: float = 128
    shown: float = SHOWN

    @property
    def multipliers(self) -> int:
        return self.rows * self.columns * self.grids

    @property
    def operand_bytes(self) -> int:
        """Bytes that stream in and out of the grids in a clock, where each has its own stream."""
        return self.grids * (self.rows * _ELEMENT + self.columns * _SUM)


def product_cycles(m: int, n: int, k: int, unit: Unit) -> int:
    """Cycles of an (m, k) x (k, n) product. Each grid takes parts of the (k, n) operand in turn,
    and loads the next one while the m rows of this one enter, one a clock; the last number leaves
    when it has crossed the grid.

    >>> product_cycles(4, 2, 2, Unit(rows=2, columns=2, grids=1))
    6
    """
    parts = ceil(ceil(k / unit.rows) * ceil(n / unit.columns) / unit.grids)
    return (parts - 1) * max(m, unit.rows) + m + unit.rows + unit.columns - 2


@dataclass(frozen=True)
class Tile:
    """Cycles of a block of scores on one multiprocessor."""

    products: float
    softmax: float
    useful: float  # cycles of the products on multipliers that are never idle
    total: float

    @property
    def utilization(self) -> float:
        """The share of the multipliers' time that contributes."""
        return self.useful / self.total


def attention_tile(queries: int, keys: int, dim: int, unit: Unit, pass_: str = "forward") -> Tile:
    """A (queries, keys) block of scores of heads with ``dim`` columns. Forward: Q K^T and P V;
    backward: Q K^T, dO V^T, P^T dO, dS^T Q and dS K.

    >>> fast = Unit(exponentials=32)
    >>> attention_tile(192, 128, 64, fast).total < attention_tile(192, 128, 64, Unit()).total
    True
    """
    scores = queries * keys
    inner = product_cycles(queries, keys, dim, unit)  # Q K^T, dO V^T
    outer = product_cycles(queries, dim, keys, unit)  # P V, dS K
    turned = product_cycles(keys, dim, queries, unit)  # P^T dO, dS^T Q
    products = inner + outer if pass_ == "forward" else 2 * inner + outer + 2 * turned
    softmax = scores * max(1 / unit.exponentials, _VECTOR[pass_] / unit.lanes)
    useful = PRODUCTS[pass_] * scores * dim / unit.multipliers
    total = max(products, softmax) + unit.shown * min(products, softmax)
    return Tile(products, softmax, useful, total)
