# SPDX-License-Identifier: MIT
"""Matrix units made for attention: the model beside measured times, and sweeps of shapes and of
exponentials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformer_kernels.bench.analysis import Compared
from transformer_kernels.hardware import Hardware
from transformer_kernels.hardware.proposals import traces
from transformer_kernels.hardware.proposals.units import Tile, Unit, attention_tile
from transformer_kernels.measure.table import ABSENT, PASS_WORDS, Table

TODAY = Unit()
ALONE = replace(TODAY, exponentials=math.inf, lanes=math.inf, shown=0)  # products alone
DIMS = (64, 128)
EXPONENTIALS = (8, 16, 32, 64, 128)  # a clock
PASSES = ("forward", "backward")
# Shapes of equally many multipliers; the last one is larger, as in processors for matrices alone.
SHAPES = (
    TODAY,
    *(Unit(rows, 2048 // rows, 1) for rows in (16, 32, 64, 128)),
    Unit(128, 128, 1),
)
PAYS = 1.1  # times as fast: less, and what hardware costs is better spent on multipliers
_QUERIES = {64: 192, 128: 192}
_KEYS = {64: 128, 128: 80}
_NAMES = ("attention", "causal_attention")


@dataclass(frozen=True)
class Validated:
    """A measured pass beside the model's time.

    Args:
        products_us: the model's time of the products alone, below which no unit for softmax gets.
    """

    problem: traces.Problem
    pass_: str
    measured_us: float
    predicted_us: float
    products_us: float

    @property
    def error(self) -> float:
        return self.predicted_us / self.measured_us - 1


def problem_of(one: Compared) -> traces.Problem | None:
    """The problem of a row of attention in 16 bits that the traces know."""
    row = one.row
    if row.op not in _NAMES or row.dtype == "float32" or row.shape[-1] not in DIMS:
        return None
    batch, time, heads, *kv_heads, dim = row.shape
    causal = row.op.startswith("causal")
    return traces.Problem(batch, time, heads, (kv_heads or [heads])[0], dim, causal)


def block_of(dim: int, unit: Unit, pass_: str) -> Tile:
    """The block of scores that the kernels of long sequences have."""
    if pass_ == "backward":
        return attention_tile(traces.BLOCK_QUERIES, traces.TILE_KEYS, dim, unit, pass_)
    return attention_tile(_QUERIES[dim], _KEYS[dim], dim, unit)


def predicted_us(problem: traces.Problem, pass_: str, unit: Unit, machine: Hardware) -> float:
    """The time of a pass. The clock is the one at which the multipliers have the measured rate of a
    large product: a card that multiplies is slower than its boost clock."""
    megahertz = machine.product_tflops("bfloat16") * 1e6 / (2 * TODAY.multipliers * machine.units)
    if pass_ == "forward":
        queries, keys = traces.forward_plan(problem)
        block = attention_tile(queries, keys, problem.dim, unit)
        lengths = [blocks for *_, blocks in traces.forward_tiles(problem)]
    else:
        block = block_of(problem.dim, unit, pass_)
        lengths = backward_lengths(problem)
    blocks = traces.makespan(lengths, machine.units)
    return blocks * block.total / megahertz + machine.launch_us


def backward_lengths(problem: traces.Problem) -> list[int]:
    """Blocks of queries that each tile of keys goes through."""
    blocks = -(-problem.time // traces.BLOCK_QUERIES)
    return [problem.group * (blocks - seen) for *_, seen in traces.backward_tiles(problem)]


def validate(compared: Sequence[Compared], machine: Hardware) -> list[Validated]:
    """Every measured pass of attention that the model knows."""
    found = []
    for one in compared:
        problem = problem_of(one)
        if problem is not None and one.row.pass_ in PASSES:
            times = [predicted_us(problem, one.row.pass_, unit, machine) for unit in (TODAY, ALONE)]
            found.append(Validated(problem, one.row.pass_, one.row.median_us, *times))
    return found


def most(found: Sequence[Validated], pass_: str, dim: int) -> float:
    """How much faster the longest measured problem would be if only its products took time."""
    kind = [one for one in found if (one.pass_, one.problem.dim) == (pass_, dim)]
    longest = max(kind, key=lambda one: one.measured_us)
    return longest.measured_us / longest.products_us


def median_error(found: Sequence[Validated]) -> float:
    return statistics.median(abs(one.error) for one in found)


# ---- tables -------------------------------------------------------------------------------------


def validation_table(found: Sequence[Validated], machine: Hardware) -> Table:
    """The longest problems of each kind, and the median error of every kind."""
    longest: dict[tuple[object, ...], Validated] = {}
    for one in sorted(found, key=lambda v: v.problem.time):
        problem = one.problem
        longest[one.pass_, problem.dim, problem.causal, problem.group] = one
    body = [
        [str(one.problem), PASS_WORDS[one.pass_], f"{one.measured_us:.0f}",
         f"{one.predicted_us:.0f}", f"{one.error:+.0%}", f"{one.products_us:.0f}"]
        for one in longest.values()
    ]  # fmt: skip
    for pass_ in PASSES:
        for dim in DIMS:
            kind = [one for one in found if (one.pass_, one.problem.dim) == (pass_, dim)]
            body.append(
                [f"median of {len(kind)}, D {dim}", PASS_WORDS[pass_], "", "",
                 f"{median_error(kind):.0%}", ABSENT]
            )  # fmt: skip
    headings = [("Problem", 26), ("pass", 4), ("measured us", 11), ("model", 8), ("error", 6),
                ("products alone", 14)]  # fmt: skip
    title = f"MATRIX UNITS AND SOFTMAX ({machine.name})"
    return Table(title, "the longest problems of each kind", headings, body)


def utilization(unit: Unit) -> list[float]:
    """The share of the multipliers' time that contributes, by pass and head dim."""
    return [block_of(dim, unit, pass_).utilization for pass_ in PASSES for dim in DIMS]


def _shares(unit: Unit) -> list[str]:
    return [f"{share:.0%}" for share in utilization(unit)]


def shape_table() -> Table:
    body = [
        [f"{unit.grids} of {unit.rows}x{unit.columns}", *_shares(unit),
         *_shares(replace(unit, shown=0))[:2], str(unit.operand_bytes)]
        for unit in SHAPES
    ]  # fmt: skip
    stage = [(f"stage, D {dim}", 12) for dim in DIMS]
    headings = [("Grids", 14), *_headings(), *stage, ("bytes a clock", 13)]
    return Table("SHAPES OF MATRIX UNITS", "share of multipliers in use", headings, body)


def exponential_table() -> Table:
    body = [
        [f"{count} a clock", *_shares(replace(TODAY, exponentials=count))] for count in EXPONENTIALS
    ]
    body.append(["a stage of the unit", *_shares(replace(TODAY, shown=0))])
    body.append(["the unit twice as fast", *_shares(replace(TODAY, grids=2 * TODAY.grids))])
    headings = [("Exponentials", 22), *_headings()]
    return Table("EXPONENTIALS", "share of multipliers in use", headings, body)


def _headings() -> list[tuple[str, int]]:
    return [(f"{PASS_WORDS[pass_]}, D {dim}", 10) for pass_ in PASSES for dim in DIMS]


def gain(unit: Unit, dim: int, pass_: str) -> float:
    """How much faster a pass is with other units than with today's."""
    return block_of(dim, TODAY, pass_).total / block_of(dim, unit, pass_).total


def worth(gain_: float) -> str:
    """The first words of a verdict, by how much faster a proposal makes attention."""
    return "It pays." if gain_ >= PAYS else "It hardly pays."


def verdict(found: Sequence[Validated]) -> str:
    """The model's answer, in numbers."""
    faster = replace(TODAY, exponentials=2 * TODAY.exponentials)
    stage = replace(TODAY, shown=0)
    twice = replace(TODAY, grids=2 * TODAY.grids)
    both = replace(twice, exponentials=2 * TODAY.exponentials)

    def of(unit: Unit, pass_: str = "forward") -> str:
        return " and ".join(f"{gain(unit, dim, pass_):.2f}x" for dim in DIMS)

    def at_most(pass_: str) -> str:
        return " and ".join(f"{most(found, pass_, dim):.2f}x" for dim in DIMS)

    grid = SHAPES[-1]
    best = max(gain(stage, dim, "forward") for dim in DIMS)
    return (
        f"{worth(best)} The model is off by {median_error(found):.0%} in the median. For head dims "
        f"of {' and '.join(map(str, DIMS))}, twice as many exponentials make the forward pass "
        f"{of(faster)} as fast and the backward pass {of(faster, 'backward')}; softmax as a stage "
        f"of the unit, {of(stage)} and {of(stage, 'backward')}. Where kernels hide more than the "
        f"model says there is less to gain: the longest measured problems would be "
        f"{at_most('forward')} and {at_most('backward')} as fast if softmax took no time. "
        f"Multipliers twice as fast alone give {of(twice)}, with twice as many exponentials "
        f"{of(both)}: units and exponentials have to grow together. One grid of "
        f"{grid.rows}x{grid.columns} uses {utilization(grid)[0]:.0%} of its multipliers where "
        f"today's use {utilization(TODAY)[0]:.0%}. Longer head dims would change this: a "
        "score then has more products for its one exponential."
    )
