# SPDX-License-Identifier: MIT
"""A cache for attention's patterns: what stored simulations of traffic say, and the time by the
model of a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transformer_kernels.bench.analysis import Compared
from transformer_kernels.bench.proposals import units
from transformer_kernels.bench.proposals.traffic import (
    GROUPED,
    L2,
    PROCESSORS,
    WAYS,
    Traffic,
)
from transformer_kernels.bench.proposals.units import problem_of, worth
from transformer_kernels.hardware import Hardware, Plan, predict
from transformer_kernels.hardware.proposals import traces
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.table import ABSENT, PASS_WORDS, Table

TODAY, PROPOSED, BOUND = "hints", ("counted", "pinned"), "belady"
_MEGABYTE = 1e6
_MUCH_FASTER = 4  # times the products and exponentials of a card whose memory stays


@dataclass(frozen=True)
class Swept:
    """A pass of a problem, with its simulations by (MiB, policy).

    Args:
        plan: what the pass asks of a machine beside bytes; None where it was not measured.
    """

    problem: str
    pass_: str
    least: int
    bytes: dict[tuple[int, str], int]
    plan: Plan | None

    def proposed(self, size: int) -> int:
        """The bytes with the better one of the proposed policies, which a kernel chooses."""
        return min(self.bytes[size, policy] for policy in PROPOSED)

    def speed_up(self, machine: Hardware, size: int, bytes_: int) -> float:
        """How much faster the pass is with so much traffic than with today's."""
        if self.plan is None:
            return self.bytes[size, TODAY] / bytes_
        today = predict(replace(self.plan, bytes=self.bytes[size, TODAY]), machine)
        return today.us / predict(replace(self.plan, bytes=bytes_), machine).us


def swept(found: Sequence[Traffic], compared: Sequence[Compared]) -> list[Swept]:
    """The sweeps over sizes and policies, each with the plan of its measured row."""
    plans = {
        (str(problem), one.row.pass_): one.plan
        for one in compared
        if (problem := problem_of(one)) is not None
    }
    groups: dict[tuple[str, str], list[Traffic]] = {}
    for one in found:
        if one.section == 0 and one.ways == WAYS and one.mebibytes >= L2 / 4 - 1:
            groups.setdefault((one.problem, one.pass_), []).append(one)
    return [
        Swept(
            *name, group[0].least, {(t.mebibytes, t.policy): t.bytes for t in group},
            plans.get(name),
        )
        for name, group in groups.items()
        if any(t.policy == BOUND for t in group)
    ]  # fmt: skip


def busy(section: int) -> float:
    """The share of the multiprocessors' time in which they work, in the backward pass of grouped
    heads, where the tiles of so many heads are mixed."""
    lengths = units.backward_lengths(replace(GROUPED, section=section))
    return sum(lengths) / (PROCESSORS * traces.makespan(lengths, PROCESSORS))


def indexed(found: Sequence[Traffic]) -> list[Traffic]:
    """The simulations of other ways and indices, whose problem has no others."""
    swept_ = {one.problem for one in found if one.policy == BOUND}
    return [one for one in found if one.problem not in swept_]


def sizes_of(sweeps: Sequence[Swept]) -> list[int]:
    return sorted({size for one in sweeps for size, _ in one.bytes})


# ---- tables -------------------------------------------------------------------------------------


def policy_table(sweeps: Sequence[Swept], machine: Hardware) -> Table:
    policies = ("lru", TODAY, *PROPOSED, BOUND)
    body = [
        [one.problem, PASS_WORDS.get(one.pass_, one.pass_), f"{one.least / _MEGABYTE:.0f}",
         *(f"{one.bytes[L2, policy] / _MEGABYTE:.0f}" for policy in policies),
         f"{one.speed_up(machine, L2, one.proposed(L2)):.2f}x"]
        for one in sweeps
    ]  # fmt: skip
    headings = [("Problem", 30), ("pass", 6), ("least MB", 8), *((p, 7) for p in policies),
                ("faster", 6)]  # fmt: skip
    title = f"TRAFFIC TO MEMORY BEHIND A CACHE OF {L2} MiB ({machine.name})"
    return Table(title, f"simulated, MB; {TODAY} is what kernels say today", headings, body)


def size_table(sweeps: Sequence[Swept]) -> Table:
    """Today's traffic and the proposal's for each size, over the least that there can be."""
    sizes = sizes_of(sweeps)
    body = [
        [one.problem, PASS_WORDS.get(one.pass_, one.pass_),
         *(f"{one.bytes[s, TODAY] / one.least:.2f} {one.proposed(s) / one.least:.2f}"
           for s in sizes)]
        for one in sweeps
    ]  # fmt: skip
    headings = [("Problem", 30), ("pass", 6), *((f"{size} MiB", 11) for size in sizes)]
    return Table(
        "CACHES OF OTHER SIZES", "traffic over the least, today and proposed", headings, body
    )


def order_table(found: Sequence[Traffic]) -> Table:
    """Software and simpler caches: orders of tiles, ways and hashing."""
    body = [
        [f"{one.problem}, mixed heads: {one.section}", PASS_WORDS[one.pass_], ABSENT, ABSENT,
         f"{one.bytes / one.least:.2f}", f"{busy(one.section):.0%}"]
        for one in found
        if one.section
    ]  # fmt: skip
    for one in indexed(found):
        index = "hashed" if one.hashed else "low bits"
        body.append([one.problem, PASS_WORDS[one.pass_], str(one.ways), index,
                     f"{one.bytes / one.least:.2f}", ABSENT])  # fmt: skip
    headings = [("Problem", 44), ("pass", 4), ("ways", 4), ("sets by", 8), ("over least", 10),
                ("busy", 5)]  # fmt: skip
    return Table(
        "OTHER ORDERS AND OTHER INDICES",
        "traffic over the least, and multiprocessors at work",
        headings,
        body,
    )


# ---- verdict ------------------------------------------------------------------------------------


def mean_gain(
    sweeps: Sequence[Swept], machine: Hardware, size: int, bytes_of: Callable[[Swept], int]
) -> float:
    """The geometric mean over the measured passes."""
    return geometric_mean(
        [s.speed_up(machine, size, bytes_of(s)) for s in sweeps if s.plan is not None]
    )


def faster_units(machine: Hardware) -> Hardware:
    """A machine that computes much faster than its memory delivers."""
    return replace(
        machine,
        products={name: rate * _MUCH_FASTER for name, rate in machine.products.items()},
        exponentials=machine.exponentials * _MUCH_FASTER,
    )


def verdict(sweeps: Sequence[Swept], found: Sequence[Traffic], machine: Hardware) -> str:
    """The simulations' answer, in numbers."""

    def gain(of: Hardware, size: int) -> str:
        return f"{mean_gain(sweeps, of, size, lambda s: s.proposed(size)):.2f}x"

    def bound(size: int) -> str:
        return f"{mean_gain(sweeps, machine, size, lambda s: s.bytes[size, BOUND]):.2f}x"

    measured = [one for one in sweeps if one.plan is not None]
    best = max(measured, key=lambda s: s.speed_up(machine, L2, s.proposed(L2)))
    sections = {one.section: one.bytes for one in found if one.section}
    fewest = min(sections, key=lambda section: sections[section])
    decodes = [one for one in sweeps if one.pass_ == "decode"]
    half = L2 // 2
    indices = {one.hashed: one.bytes / one.least for one in indexed(found) if one.ways == WAYS}
    texts = [
        worth(mean_gain(sweeps, machine, L2, lambda s: s.proposed(L2))),
        f"With {L2} MiB, a cache that is told how many loads will come makes the measured passes "
        f"{gain(machine, L2)} as fast in the geometric mean, at most "
        f"{best.speed_up(machine, L2, best.proposed(L2)):.2f}x ({best.problem}, {best.pass_}); a "
        f"cache that knows the future, {bound(L2)}.",
        f"An order of tiles does part of it without hardware: the backward pass of grouped heads "
        f"has {sections[fewest] / _MEGABYTE:.0f} MB of traffic where tiles of {fewest} of its "
        f"heads of keys are mixed, but multiprocessors then work {busy(fewest):.0%} of the time. "
        f"The index does as much: with {WAYS} ways, low bits of the address give "
        f"{indices[False]:.2f} times the least traffic where a hash gives {indices[True]:.2f}, "
        f"since the rows of all heads together fill memory without gaps.",
        f"It would matter more with {half} MiB, {gain(machine, half)} as fast, and where products "
        f"and exponentials were {_MUCH_FASTER} times as fast beside the same memory: "
        f"{gain(faster_units(machine), L2)} with {L2} MiB, "
        f"{gain(faster_units(machine), half)} with {half} MiB.",
        "Decoding is bound by memory, so its gain is that of the traffic: "
        + ", ".join(
            f"{one.speed_up(machine, L2, one.proposed(L2)):.2f}x ({one.problem})" for one in decodes
        )
        + ". The second one keeps a part of one layer's keys from token to token, which a model "
        "cannot: all its layers and weights pass between two tokens.",
    ]
    return " ".join(texts)
