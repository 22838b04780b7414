# SPDX-License-Identifier: MIT
"""Predictions of the model of :mod:`transformer_kernels.hardware` beside what was measured."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_kernels.bench import cpu_work
from transformer_kernels.bench.cases import all_ops
from transformer_kernels.hardware import (
    DATASHEETS,
    WHAT_IFS,
    Hardware,
    Measured,
    Plan,
    Prediction,
    cpu_of_results,
    fitted,
    kept_as,
    left_out,
    like,
    of_results,
    predict,
    sheet_of,
)
from transformer_kernels.measure.case import Case
from transformer_kernels.measure.schema import Result, Row
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.sweeps import shape_text
from transformer_kernels.measure.table import PASS_WORDS, Table, short_dtype

WORST = 10
_HEADINGS = [
    ("Op", 24), ("pass", 7), ("dtype", 5), ("shape", 22), ("measured us", 11), ("predicted", 9),
    ("error", 6), ("bound", 12),
]  # fmt: skip
_REASON = 44
_UNUSUAL = 1.5
_EVERY = 4  # of the sizes of copies is shown
# Properties of ops that the model does not know, by the beginning of the ops' keys.
_UNMODELLED = {
    "attention/decode": "the cache is read by few threads",
    "attention/": "blocks of the mask's edge, sums of several blocks",
    "decode/": "a sum over the row in one thread",
    "embedding/": "gathered rows, sums into the same row",
    "graph/": "gathered rows, sums into the same row",
    "linear/quantized": "unpacking, which differs by the rows",
    "linear/": "tiles that do not fill the registers",
    "optimizer/": "streams past the cache",
}
_ROWS_OF_A_BLOCK = 128  # of attention's queries
# Products of a score with the numbers of a head, and its exponentials.
_PRODUCTS_OF_A_SCORE = {"forward": (2, 1), "backward": (5, 1), "both": (7, 2)}


@dataclass(frozen=True)
class Compared:
    """A measured row, what it asked of the machine, and its prediction."""

    row: Row
    plan: Plan
    prediction: Prediction
    copy_us: float | None = None  # of the copy that was measured beside it

    @property
    def error(self) -> float:
        """Relative; negative where the op takes longer than predicted."""
        return self.prediction.us / self.row.median_us - 1


def plan_of(row: Row, case: Case) -> Plan:
    """The op asks a machine for this, by its declaration; the row names the problem."""
    shape = tuple(row.shape)
    flops = 0.0 if case.flops is None else case.flops(row.pass_, shape)
    return Plan(
        bytes=row.bytes,
        flops=flops,
        dtype=row.dtype,
        exponentials=_exponentials(case, row.pass_, shape[-1], flops),
        longest=_longest(case, shape),
    )


def _exponentials(case: Case, pass_: str, dim: int, flops: float) -> float:
    """Attention has one for each score. Other ops have one for each number that they read, which
    takes no time beside reading it."""
    if not case.key.startswith("attention/"):
        return 0.0
    products, exponentials = _PRODUCTS_OF_A_SCORE[pass_]
    return flops / (2 * products * dim) * exponentials


def _longest(case: Case, shape: tuple[int, ...]) -> float:
    """The share of the longest of attention's blocks, which have some rows of one head each. With
    a causal mask the last rows have twice the mean."""
    if not case.key.startswith("attention/"):
        return 0.0
    batch, time, heads, *_ = shape
    blocks = batch * heads * math.ceil(time / _ROWS_OF_A_BLOCK)
    return (2 if "causal" in case.name and time > _ROWS_OF_A_BLOCK else 1) / max(blocks, 1)


def compare(results: Sequence[Result], machine: Hardware) -> list[Compared]:
    """Predicts every row of ours in the results whose op is still there."""
    copies = {
        row.problem: row.median_us
        for result in results
        for row in result.rows
        if row.provider == "copy"
    }
    return [
        Compared(row, plan, predict(plan, machine), copies.get(row.problem))
        for row, plan in plans_of(results)
    ]


def plans_of(results: Sequence[Result]) -> list[tuple[Row, Plan]]:
    """Each row of ours in the results whose op is still there, with its plan."""
    cases = all_ops()
    found = []
    for result in results:
        on_cpu = result.machine.device == "cpu"
        for row in (r for r in result.rows if r.provider == "ours" and r.op in cases):
            plan = plan_of(row, cases[row.op])
            if on_cpu:
                threads = int(result.settings["threads"])
                plan = cpu_work.add_work(plan, row, cases[row.op], result.machine.cores, threads)
            found.append((row, plan))
    return found


def measured_in(results: Sequence[Result]) -> list[Measured]:
    """The times of ours in the results, and what each call asked of the machine."""
    cases = all_ops()
    return [
        Measured(row.op, cases[row.op].key, plan, row.median_us) for row, plan in plans_of(results)
    ]


def median_error(compared: Sequence[Compared]) -> float:
    """The median of the errors' sizes.

    Raises:
        ValueError: there is nothing to compare.
    """
    if not compared:
        raise ValueError("analyze: the results hold no row of ours, expected those of `bench`")
    return statistics.median(abs(c.error) for c in compared)


# ---- tables -------------------------------------------------------------------------------------


def render(results: Sequence[Result], measured_on: Sequence[Result], what_if: bool = True) -> str:
    """All tables of the results' card, whose numbers come from the results ``measured_on``."""
    machine = machine_of(results, measured_on)
    compared = compare(results, machine)
    tables = [machine_table(machine), op_table(compared, machine), worst_table(compared, machine)]
    if machine.rates:
        tables.append(left_out_table(results, machine))
    if what_if:
        tables.append(what_if_table(compared, machine))
    return "\n".join(map(str, tables))


def machine_table(machine: Hardware) -> Table:
    """The model knows this of a machine, and from there."""
    products = ", ".join(f"{dtype} {rate:.3g}" for dtype, rate in machine.products.items())
    rows = [
        ("copy", f"{machine.copy_gbps:.0f} GB/s", "copy_gbps"),
        ("products", f"{products} TFLOP/s", "products"),
        ("exponentials", f"{machine.exponentials:.0f}e9 a second", "exponentials"),
        ("launch", f"{machine.launch_us:.1f} us", "launch_us"),
        *((name, f"{rate:.1f}e9 a second", "rates") for name, rate in machine.rates.items()),
    ]
    if machine.page_us:
        rows.append(("new page", f"{machine.page_us:.2f} us", "page_us"))
    if machine.host_us:
        rows.append(("host's call", f"{machine.host_us:.1f} us", "host_us"))
    for size, gbps in sorted(machine.copies.items())[::_EVERY]:
        rows.append((f"copy {_size_text(size)}", f"{gbps:.0f} GB/s", "copies"))
    body = [[name, value, machine.origins.get(field, "given")] for name, value, field in rows]
    headings = [("What", 12), ("how much", 30), ("known from", 28)]
    return Table(f"MACHINE ({machine.name})", "as the model sees it", headings, body)


def _size_text(size: int) -> str:
    power = min(int(math.log2(size) // 10), 3)
    return f"{size / 1024**power:.0f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def left_out_table(results: Sequence[Result], machine: Hardware) -> Table:
    """The errors where the fitted rates come from other ops than those that are predicted."""
    measured = measured_in(results)
    body = [["none", f"{median_error(compare(results, machine)):.1%}"]]
    for by, text in (("op", "the op itself"), ("kernel", "all ops of its kernel")):
        errors = left_out(machine, measured, by)
        body.append([text, f"{statistics.median(map(abs, errors)):.1%}"])
    title = f"RATES FITTED WITHOUT WHAT THEY PREDICT ({machine.name})"
    return Table(
        title, "error of the predicted time", [("Left out", 24), ("median error", 12)], body
    )


def measured_table(results: Sequence[Result], machine: Hardware) -> Table:
    """The errors by the numbers of the results' own files, and by those that were measured by
    themselves."""
    by_files = machine_of(results, results)
    body = [
        [text, f"{median_error(compare(results, known)):.1%}"]
        for text, known in (("the result files", by_files), ("the card alone", machine))
    ]
    title = f"PREDICTED BY WHAT WAS MEASURED ({machine.name})"
    headings = [("Numbers of", 24), ("median error", 12)]
    return Table(title, "error of the predicted time", headings, body)


def worst_table(compared: Sequence[Compared], machine: Hardware) -> Table:
    """The op, pass and dtype with the largest errors, each by its worst problem."""
    worst: dict[tuple[str, str, str], Compared] = {}
    for one in sorted(compared, key=lambda c: abs(c.error)):
        worst[one.row.op, one.row.pass_, one.row.dtype] = one
    chosen = sorted(worst.values(), key=lambda c: -abs(c.error))[:WORST]
    title = f"PREDICTIONS THAT ARE FARTHEST OFF ({machine.name})"
    body = [[*_cells(one), reason(one, machine)] for one in chosen]
    headings = [*_HEADINGS, ("reason", _REASON)]
    return Table(title, "the worst problem of an op", headings, body)


def reason(one: Compared, machine: Hardware) -> str:
    """Why a prediction is off, as far as the result tells: the machine did something else beside
    it, or the op does what the model does not know."""
    row, case = one.row, all_ops()[one.row.op]
    usual = machine.copy_us(row.bytes) + machine.launch_us
    if (
        not row.cold
        and one.copy_us is not None
        and not 1 / _UNUSUAL < one.copy_us / usual < _UNUSUAL
    ):
        return f"the copy beside it took {one.copy_us / usual:.1f}x its usual time"
    if row.p10_us < row.median_us / _UNUSUAL:
        return f"times varied: p10 is {row.p10_us / row.median_us:.0%} of the median"
    if one.prediction.bound == "launches":
        return "hardly more than a launch"
    if not row.cold and one.copy_us is not None and row.median_us < one.copy_us:
        return "faster than a copy: it stays in the cache"
    for key, why in _UNMODELLED.items():
        if case.key.startswith(key):
            return why
    return "not known"


def op_table(compared: Sequence[Compared], machine: Hardware) -> Table:
    """The median error of each op, and of all."""
    groups = defaultdict(list)
    for one in compared:
        groups[one.row.op].append(one)
    body = [[op, str(len(found)), f"{median_error(found):.0%}"] for op, found in groups.items()]
    body.append(["all", str(len(compared)), f"{median_error(compared):.1%}"])
    headings = [("Op", 28), ("problems", 8), ("median error", 12)]
    title = f"PREDICTED AND MEASURED ({machine.name})"
    return Table(title, "error of the predicted time", headings, body)


def what_if_table(compared: Sequence[Compared], machine: Hardware) -> Table:
    """How much faster the measured problems would be on other machines, by what bounds them."""
    groups = defaultdict(list)
    for one in compared:
        groups[one.prediction.bound].append(one)
    bounds = sorted(groups)
    others = {name: change(machine) for name, change in WHAT_IFS.items()}
    if not machine.rates:  # a card
        others |= other_cards(machine)
    body = [
        [name, *(f"{_speed_up(groups[bound], other):.2f}x" for bound in bounds)]
        for name, other in others.items()
    ]
    headings = [("Machine", 27), *((f"{bound} ({len(groups[bound])})", 12) for bound in bounds)]
    title = f"WHAT IF ({machine.name})"
    return Table(title, "predicted speed-up, by what bounds a problem", headings, body)


def other_cards(machine: Hardware) -> dict[str, Hardware]:
    """Other cards by the data sheets, where this one has a sheet too."""
    sheet = sheet_of(machine.name)
    return {name: like(machine, sheet, card) for name, card in DATASHEETS.items() if sheet}


def _speed_up(compared: Sequence[Compared], other: Hardware) -> float:
    return geometric_mean([c.prediction.us / predict(c.plan, other).us for c in compared])


def _known_of(name: str) -> Hardware:
    """The data sheet of a card, or what this user measured on it.

    Raises:
        ValueError: there is neither.
    """
    found = sheet_of(name) or kept_as(name)
    if found is None:
        known = ", ".join(DATASHEETS)
        raise ValueError(
            f"analyze: no data sheet for {name}, expected one of {known}, or a card that "
            "`analyze --measure` has measured"
        )
    return found


def machine_of(results: Sequence[Result], measured_on: Sequence[Result]) -> Hardware:
    """The machine of the results: a CPU by the copies and times of others, which are its own; a
    card by the copies and products of others and by the data sheets, those of the same card or of
    another one.

    Raises:
        ValueError: either are of several devices, or of one without a data sheet that was not
            measured, or the others have too few copies.
    """
    if results and results[0].machine.device == "cpu":
        device_of([*results, *measured_on])
        return fitted(cpu_of_results(measured_on), measured_in(measured_on))
    own, other = (_known_of(device_of(of)) for of in (results, measured_on))
    machine = of_results(measured_on, other)
    return machine if own == other else like(machine, other, own)


def device_of(results: Sequence[Result]) -> str:
    """The device on which all results were measured.

    Raises:
        ValueError: there are several, or no result.
    """
    names = sorted({result.machine.device_name for result in results})
    if len(names) != 1:
        raise ValueError(f"analyze: results of {' and '.join(names) or 'no op'}, expected one card")
    return names[0]


def _cells(one: Compared) -> list[str]:
    row = one.row
    return [
        row.op, PASS_WORDS[row.pass_], short_dtype(row.dtype), shape_text(tuple(row.shape)),
        f"{row.median_us:.1f}", f"{one.prediction.us:.1f}", f"{one.error:+.0%}",
        one.prediction.bound,
    ]  # fmt: skip
