# SPDX-License-Identifier: MIT
"""Attention on the FPGA array: fused in its pipeline of rows, against one operation after another.

Cycles and bytes of a command are those of csrc/fpga (cycles.cpp and array.h), in which simulations
of the RTL count the same ones. An array of any size can be asked, also one that nobody has built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Registers between events, as csrc/fpga/cycles.cpp has them.
_START, _LOADING, _GAP, _DRAIN, _NEXT_DRAIN = 5, 2, 5, 42, 4
_DIVISION, _SCORE_TAIL, _SHARE_TAIL = 25, 9, 31
_MOST_ROWS, _MOST_RESULTS = 32768, 1 << 20


@dataclass(frozen=True)
class Array:
    """The parameters of an array: R, C, D, NK and NL of fpga/rtl.

    Args:
        rows: queries of a tile, one row of the array each.
        lanes: elements of the head dim at a time, bytes of an input beat.
        head_dim: of q, k and v.
        keys: that the buffers hold.
        output_lanes: 16-bit words of an output beat.
    """

    rows: int
    lanes: int
    head_dim: int
    keys: int
    output_lanes: int = 4

    @property
    def chunks(self) -> int:
        """Cycles of a key."""
        return self.head_dim // self.lanes

    @property
    def multipliers(self) -> int:
        return 2 * self.rows * self.lanes + 2 * self.rows + self.output_lanes

    @property
    def statistics_words(self) -> int:
        """Words of a query's maximum and sum, which follow its results."""
        return max(4, self.output_lanes)

    def __str__(self) -> str:
        return f"r{self.rows}c{self.lanes}d{self.head_dim}n{self.keys}"


@dataclass(frozen=True)
class Cost:
    """Cycles of commands that follow each other, with streams that never stall, and the bytes of
    these streams."""

    cycles: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cycles + other.cycles, self.bytes + other.bytes)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _total(costs: Iterator[Cost]) -> Cost:
    return sum(costs, Cost())


# ---- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attention:
    """Query i of the command sees the keys up to i + offset; None: all of them."""

    queries: int
    keys: int
    load: bool
    offset: int | None


def _attention_command(array: Array, command: _Attention) -> Cost:
    load_queries = _LOADING + array.rows * array.chunks
    words = array.head_dim + array.statistics_words
    drain = _DRAIN + array.rows * words // array.output_lanes
    now = _START + 2 * array.chunks * command.keys * command.load
    ready, drained = now + load_queries, 0
    for tile in range(command.queries // array.rows):
        start = max(now, ready)
        ready = start + load_queries
        keys = command.keys
        if command.offset is not None:
            keys = min(max((tile + 1) * array.rows + command.offset, 1), keys)
        now = max(start + (keys + 1) * array.chunks + _GAP, drained + _NEXT_DRAIN)
        drained = now + drain
    rows = command.queries + 2 * command.load * command.keys
    return Cost(drained, rows * array.head_dim + 2 * command.queries * words)


def _matmul_command(array: Array, rows: int, outputs: int, load: bool) -> Cost:
    load_queries = _LOADING + array.rows * array.chunks
    tiles = rows // array.rows
    tile = max(outputs * array.chunks + 1, load_queries)
    cycles = _START + array.chunks * outputs * load + load_queries + (tiles - 1) * tile
    cycles += outputs * array.chunks + _SCORE_TAIL + array.rows
    results = tiles * _up(4 * array.rows * outputs, 2 * array.output_lanes)
    return Cost(cycles, (rows + load * outputs) * array.head_dim + results)


def _softmax_command(array: Array, rows: int, columns: int) -> Cost:
    tiles = rows // array.rows
    passes = (2 * columns + 1) * array.chunks + _GAP + _DIVISION + 1
    scores = 2 * array.rows * columns
    moved = 2 * _up(scores, array.lanes) + _up(scores, 2 * array.output_lanes)
    return Cost(_START + tiles * passes + _SHARE_TAIL + array.rows, tiles * moved)


# ---- operations ---------------------------------------------------------------------------------


def attention(
    array: Array, queries: int, keys: int, heads: int = 1, kv_heads: int = 1, causal: bool = False
) -> Cost:
    """Fused attention, (heads, queries) over (kv_heads, keys), with the last query on the last key.

    Keys that do not fit the buffers come in parts, whose results the host merges.

    >>> attention(Array(2, 4, 64, 256), 256, 256, heads=4, kv_heads=4).cycles
    2141132
    """
    group = heads // kv_heads
    parts = (
        _group_part(array, queries, group, keys, begin, causal)
        for begin in range(0, keys, array.keys)
    )
    one = _total(parts)
    return Cost(one.cycles * kv_heads, one.bytes * kv_heads)


def _group_part(
    array: Array, queries: int, group: int, keys: int, begin: int, causal: bool
) -> Cost:
    """The query heads of a head of k over one load of the buffers, as query_blocks() cuts them."""
    end, offset = min(begin + array.keys, keys), keys - queries
    if not causal or offset + 1 >= end:
        cuts: list[tuple[int, int | None]] = [(group * queries, None)]
    else:
        first = min(max(begin - offset, 0), queries)
        cuts = [(queries - first, offset + first - begin)] * group
    found = Cost()
    load = True
    for rows, seen in cuts:
        for row in range(0, rows, _MOST_ROWS):
            count = _up(min(_MOST_ROWS, rows - row), array.rows)
            sees = None if seen is None else min(seen + row, end - begin)
            found += _attention_command(array, _Attention(count, end - begin, load, sees))
            load = False
    return found


def matmul(array: Array, rows: int, outputs: int, width: int) -> Cost:
    """(rows, width) x (outputs, width)^T, part by part of the second operand.

    >>> matmul(Array(2, 4, 64, 256), 256, 768, 768).cycles
    19028196
    """

    def part(begin: int) -> Cost:
        count = min(array.keys, outputs - begin)
        step = min(max(_up(_MOST_RESULTS // count, array.rows), array.rows), _MOST_ROWS)
        return _total(
            _matmul_command(array, _up(min(step, rows - row), array.rows), count, row == 0)
            for row in range(0, rows, step)
        )

    folds = -(-width // array.head_dim)
    once = _total(part(begin) for begin in range(0, outputs, array.keys))
    return Cost(once.cycles * folds, once.bytes * folds)


def softmax(array: Array, rows: int, columns: int) -> Cost:
    """Softmax of (rows, columns) scores.

    >>> softmax(Array(2, 4, 64, 256), 1024, 1024).cycles
    16801318
    """
    step = min(max(_MOST_RESULTS // columns, 1), _MOST_ROWS)
    return _total(
        _softmax_command(array, _up(min(step, rows - row), array.rows), columns)
        for row in range(0, rows, step)
    )


def op_by_op(array: Array, queries: int, keys: int) -> Cost:
    """One head of attention as two products with softmax between them, whose scores go through
    memory. Where a product has more rows than a key has cycles, no array has been built for it: its
    scores would leave faster than one at a time."""
    dim = array.head_dim
    return (
        matmul(array, queries, keys, dim)
        + softmax(array, queries, keys)
        + matmul(array, queries, dim, keys)
    )


def score_bytes(array: Array, keys: int) -> int:
    """Bytes of a buffer on chip that keeps the scores of a tile, in 32 bits. With it three
    operations move as many bytes as the pipeline."""
    return 4 * array.rows * min(keys, array.keys)
