# SPDX-License-Identifier: MIT
"""Streaming dataflow: attention fused in the FPGA array's pipeline against one operation after
another on the same array."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformer_kernels.bench.proposals.units import worth
from transformer_kernels.hardware.proposals import array
from transformer_kernels.hardware.proposals.array import Array, Cost
from transformer_kernels.measure.schema import ArrayRow
from transformer_kernels.measure.table import Table

TIMES = (256, 1024, 4096)
# The two largest arrays that were built for these dims, and larger ones.
ARRAYS = (
    Array(4, 16, 64, 1024),
    Array(4, 16, 128, 1024),
    Array(16, 16, 64, 1024),
    Array(64, 16, 64, 1024),
)
_ATTENTION = re.compile(r"(\d+)x(\d+), (\d+)/(\d+) heads of (\d+)")
_NAME = re.compile(r"r(\d+)c(\d+)d(\d+)n(\d+)")


@dataclass(frozen=True)
class Recorded:
    """A recorded run beside the cycles of the model."""

    row: ArrayRow
    cycles: int


def array_of(name: str) -> Array:
    """The array of a name such as ``r4c16d64n1024``, with four output lanes.

    Raises:
        ValueError: the name is not of this form.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"proposals: array is {name!r}, expected a name such as r4c16d64n1024")
    return Array(*map(int, found.groups()))


def recorded(rows: Sequence[ArrayRow]) -> list[Recorded]:
    """The model's cycles of each recorded op."""
    return [Recorded(row, _cycles_of(row)) for row in rows]


def _cycles_of(row: ArrayRow) -> int:
    held = array_of(row.array)
    if found := _ATTENTION.match(row.shape):
        queries, keys, heads, kv_heads, _ = map(int, found.groups())
        return array.attention(held, queries, keys, heads, kv_heads, "causal" in row.op).cycles
    sizes = [int(size) for size in row.shape.split("x")]
    if row.op == "softmax":
        return array.softmax(held, *sizes).cycles
    rows, width, outputs = sizes
    return array.matmul(held, rows, outputs, width).cycles


def recorded_table(found: Sequence[Recorded]) -> Table:
    body = [
        [one.row.op, one.row.shape, one.row.array, str(one.row.cycles), str(one.cycles)]
        for one in found
    ]
    headings = [("Op", 18), ("shape", 30), ("array", 14), ("recorded", 9), ("model", 9)]
    return Table("CYCLES OF THE ARRAY", "as its simulator counts them", headings, body)


@dataclass(frozen=True)
class Compared:
    """One head of attention, fused and as three operations.

    Args:
        fused: in the pipeline.
        apart: as three operations, each of which uses one of a row's two products.
        doubled: likewise on twice as many rows: as many multipliers as the pipeline has.
    """

    array: Array
    time: int
    fused: Cost
    apart: Cost
    doubled: Cost

    @property
    def multipliers_in_use(self) -> float:
        """The share of the fused array's products over the time that its multipliers had."""
        products = 2 * self.time * self.time * self.array.head_dim
        return products / (2 * self.array.rows * self.array.lanes * self.fused.cycles)


def compared(arrays: Sequence[Array] = ARRAYS, times: Sequence[int] = TIMES) -> list[Compared]:
    return [
        Compared(
            one, time, array.attention(one, time, time), array.op_by_op(one, time, time),
            array.op_by_op(replace(one, rows=2 * one.rows), time, time),
        )
        for one in arrays
        for time in times
    ]  # fmt: skip


def compared_table(found: Sequence[Compared]) -> Table:
    body = [
        [str(one.array), str(one.time), str(one.fused.cycles),
         f"{one.multipliers_in_use:.0%}",
         f"{one.apart.cycles / one.fused.cycles:.2f}x",
         f"{one.doubled.cycles / one.fused.cycles:.2f}x",
         f"{one.fused.bytes / 1024:.0f}", f"{one.apart.bytes / one.fused.bytes:.1f}x",
         f"{array.score_bytes(one.array, one.time) / 1024:.0f}"]
        for one in found
    ]  # fmt: skip
    headings = [("Array", 16), ("keys", 5), ("cycles", 9), ("in use", 6), ("apart", 6),
                ("equal units", 11), ("KiB", 7), ("apart", 6), ("score KiB", 9)]  # fmt: skip
    subtitle = "cycles and bytes of a head fused, and how many times as many apart"
    return Table("STREAMING DATAFLOW", subtitle, headings, body)


def verdict(found: Sequence[Compared], runs: Sequence[Recorded]) -> str:
    """The cycles' answer, in numbers."""
    exact = sum(one.cycles == one.row.cycles for one in runs)
    small, large = found[0], found[len(TIMES) - 1]
    starved = found[-len(TIMES)]
    full = found[-1]
    equal = large.doubled.cycles / large.fused.cycles
    return (
        f"{worth(equal)} The model has the cycles of {exact} of {len(runs)} recorded runs exactly. "
        f"On {large.array} with {large.time} keys, three operations take "
        f"{large.apart.cycles / large.fused.cycles:.1f} times the cycles of the pipeline, and "
        f"{equal:.1f} times with as many multipliers; they "
        f"move {large.apart.bytes / large.fused.bytes:.0f} times the bytes, with {small.time} keys "
        f"{small.apart.bytes / small.fused.bytes:.0f} times. A buffer for a tile's scores, "
        f"{array.score_bytes(large.array, large.time) / 1024:.0f} KiB, would save these bytes, and "
        f"no cycles. "
        f"The pipeline keeps {full.multipliers_in_use:.0%} of the multipliers of {full.array} "
        f"busy with {full.time} keys, but {starved.multipliers_in_use:.0%} with {starved.time}: "
        "an array with more rows has to load their queries and drain their results behind fewer "
        "tiles, so short sequences would change the verdict."
    )
