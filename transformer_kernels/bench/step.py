# SPDX-License-Identifier: MIT
"""Measures where the time of a training step goes, by parts, and the least that each could take.

The time of a part is the time of its operators in PyTorch's profiler, or of its kernels on a GPU.
Each is the least of several steps, because other load only adds time. A part's floor sums over the
same operators the longer of two times: their operations at the rate of a large matrix product, and
a copy of as many bytes as they move.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from transformer_kernels.bench import training
from transformer_kernels.measure import machine, table
from transformer_kernels.measure.ceilings import copy_calls, measure_ceilings
from transformer_kernels.measure.schema import Ceilings, Result, StepPart
from transformer_kernels.measure.timing import Timer, interleave, make_timer
from transformer_kernels.ops import _work as declared
from transformer_kernels.profile import KernelProfiler, work
from transformer_kernels.profile._recording import Window
from transformer_kernels.profile.kernels import operators
from transformer_kernels.profile.trace import Event, Trace

PRODUCTS, ATTENTION, MEMORY = "products", "attention", "memory-bound ops"
OPTIMIZER, REST = "optimizer", "host and the rest"
PARTS = (PRODUCTS, ATTENTION, MEMORY, OPTIMIZER, REST)

_OF_KINDS = {
    declared.PRODUCT: PRODUCTS, declared.ATTENTION: ATTENTION, declared.MEMORY: MEMORY,
    declared.OPTIMIZER: OPTIMIZER,
}  # fmt: skip
_PRODUCTS = ("mm", "addmm", "addmm_", "_addmm_activation")  # of PyTorch
_BATCHED = ("bmm", "baddbmm")  # only attention uses these
_OPTIMIZER = "Optimizer.step"  # start of the name of PyTorch's mark around it
_COPIES = [1 << n for n in range(12, 24, 2)]  # bytes; the ceiling's are more
_COPY_ROUNDS = 40
WARM_UP = 3  # steps that are not measured

Shapes = Iterable[Sequence[int]]


@dataclass(frozen=True)
class Task:
    """Models that take the same step, and the length that identifies attention's operators."""

    models: Mapping[str, Any]
    batch: Any
    loss_of: Callable[[Any, Any], torch.Tensor]
    recipe: training.Recipe
    tokens: int  # per sequence; only scores have a dimension pair of this size


def measure(task: Task, device: torch.device, rounds: int = 9) -> Result:
    """Measures windows of one step, of every model in turn."""
    timer = make_timer(device, "events")
    ceilings = measure_ceilings(timer, device, least=True)
    floor_of = Floor(timer, device, ceilings)
    runs = {n: training.Run.begin(m, task.recipe, device) for n, m in task.models.items()}
    for _ in range(WARM_UP):
        for run in runs.values():
            run.step(task.loss_of, task.batch, device)
    floors = {name: _floors(run, task, device, floor_of) for name, run in runs.items()}
    windows: dict[str, list[Pieces]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            with KernelProfiler(device) as profiler:
                run.step(task.loss_of, task.batch, device)
            windows[name].append(_pieces(profiler.trace, device, task.tokens))
    rows = [
        StepPart(name, part, calls, us, floors[name].get(part))
        for name, found in windows.items()
        for part, (calls, us) in _parts(found).items()
    ]
    return machine.new_result(device, settings={}, ceilings=ceilings, step_parts=rows)


# ---- time ---------------------------------------------------------------------------------------

# For each operator in order, and the time before it: the part and its microseconds.
Pieces = list[tuple[str, float]]


def _parts(windows: Sequence[Pieces]) -> dict[str, tuple[int, float]]:
    """Calls and time of each part, over the steps with the most common number of operators."""
    length = Counter(map(len, windows)).most_common(1)[0][0]
    alike = [pieces for pieces in windows if len(pieces) == length]
    least = [(same[0][0], min(us for _, us in same)) for same in zip(*alike, strict=True)]
    found = {part: [us for of, us in least if of == part] for part in PARTS}
    return {part: (len(times) if part != REST else 0, sum(times)) for part, times in found.items()}


def _pieces(trace: Trace, device: torch.device, tokens: int) -> Pieces:
    window = Window(trace)
    pieces, end = [], window.begin
    for event, launcher in sorted(_computing(trace, device), key=lambda pair: pair[0].start):
        pieces.append((REST, max(0.0, event.start - end)))
        pieces.append((_part_of_event(launcher, tokens), event.duration))
        end = max(end, event.end)
    return [*pieces, (REST, max(0.0, window.end - end))]


def _computing(trace: Trace, device: torch.device) -> Iterator[tuple[Event, Event | None]]:
    """The events that took time, each with its operator; on a CPU they are the same."""
    if device.type == "cuda":
        yield from ((event, trace.operator_of(event)) for event in trace.on_device)
    else:
        yield from ((event, event) for event in operators(trace.roots))


def _part_of_event(launcher: Event | None, tokens: int) -> str:
    around = [] if launcher is None else list(launcher.ancestors())
    if any(event.name.startswith(_OPTIMIZER) for event in around):
        return OPTIMIZER
    known = [event for event in around if event.category == "cpu_op"]
    event = next((e for e in known if work.is_ours(e.name)), known[0] if known else None)
    return MEMORY if event is None else part_of(event.name, _shapes(event), tokens)


def _shapes(event: Event) -> Iterator[Sequence[int]]:
    """The shapes of tensors, and of tensors in lists."""
    for dims in event.arguments.get("Input Dims", ()):
        if dims and isinstance(dims[0], list):
            yield from dims
        else:
            yield dims


def part_of(name: str, shapes: Shapes, tokens: int) -> str:
    """Ours by what is declared; others by their name, and by the square of scores among their
    arguments."""
    kind = work.kind_of(name)
    if kind is not None and kind != declared.MEMORY:
        return _OF_KINDS[kind]
    short = name.rpartition("::")[2]
    if short in _PRODUCTS:
        return PRODUCTS
    if "attention" in short or short in _BATCHED:
        return ATTENTION
    has_scores = any(tuple(shape[-2:]) == (tokens, tokens) for shape in shapes)
    return ATTENTION if has_scores else MEMORY


# ---- floors -------------------------------------------------------------------------------------


class Floor:
    """The least microseconds of a call, from rates measured on this machine."""

    def __init__(self, timer: Timer, device: torch.device, ceilings: Ceilings) -> None:
        self._flops_per_us = ceilings.matmul_tflops * 1e6
        calls = {size: copy_calls(size, 1, device)["copy_"] for size in _COPIES}
        watches = {str(size): timer.stopwatch(call) for size, call in calls.items()}
        times = interleave(watches, timer, 0.0, _COPY_ROUNDS)
        self._copies = [(size, times[str(size)].p10) for size in _COPIES]
        self._copies.append((ceilings.copy_bytes, ceilings.copy_bytes / ceilings.copy_gbps / 1e3))

    def __call__(self, call: work.Counted) -> float:
        return max(call.flops / self._flops_per_us, self.copy(call.bytes))

    def copy(self, moved: int) -> float:
        """The time of a copy, interpolated between measured sizes; the smallest is the cost of a
        call."""
        if not moved:
            return 0.0
        place = bisect_left(self._copies, (moved, 0.0))
        if place == 0:
            return self._copies[0][1]
        if place == len(self._copies):
            size, us = self._copies[-1]
            return us * moved / size
        (low, low_us), (high, high_us) = self._copies[place - 1 : place + 1]
        return low_us + (high_us - low_us) * (moved - low) / (high - low)


def _floors(
    run: training.Run, task: Task, device: torch.device, floor_of: Floor
) -> dict[str, float]:
    with work.Counting() as gradients:
        run.gradients(task.loss_of, task.batch, device)
    with work.Counting() as update:
        run.update()
    floors = dict.fromkeys((PRODUCTS, ATTENTION, MEMORY), 0.0)
    for call in gradients.calls:
        floors[part_of(call.name, call.shapes, task.tokens)] += floor_of(call)
    return {**floors, OPTIMIZER: sum(map(floor_of, update.calls))}


# ---- the table ----------------------------------------------------------------------------------


def render(result: Result) -> str:
    """For each model, a line for each part and one for the step, in milliseconds."""
    names = list(dict.fromkeys(row.model for row in result.step_parts))
    headings = [("Part", 18)]
    for name in names:
        headings += [(name, 8), ("share", 7), ("calls", 5), ("floor", 7)]
    models = [[row for row in result.step_parts if row.model == name] for name in names]

    def line(label: str, parts: Sequence[str]) -> list[str]:
        cells = [_cells([row for row in rows if row.part in parts], rows) for rows in models]
        return [label, *chain.from_iterable(cells)]

    body = [*(line(part, [part]) for part in PARTS), line("the step", PARTS)]
    title = f"A STEP OF TRAINING ({result.machine.device_name})"
    what = ", ".join(result.settings.values())
    subtitle = f"milliseconds; {what}" if what else "milliseconds"
    return table.box(title, subtitle, headings, body)


def _cells(rows: Sequence[StepPart], of: Sequence[StepPart]) -> list[str]:
    us, total = sum(row.us for row in rows), sum(row.us for row in of)
    floors = [row.floor_us for row in rows if row.floor_us is not None]
    return [
        f"{us / 1e3:.2f}",
        f"{100 * us / total:.1f} %",
        str(sum(row.calls for row in rows)),
        f"{sum(floors) / 1e3:.2f}" if floors else table.ABSENT,
    ]
