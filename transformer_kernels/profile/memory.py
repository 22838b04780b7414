# SPDX-License-Identifier: MIT
"""``MemoryProfiler`` shows the peak memory and its owners, memory over time, and leaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..measure import machine
from ._arguments import at_least
from ._recording import TraceProfiler, Window
from ._report import Report, flat, mega, percent, table
from .kernels import operators
from .trace import Change, Event, Trace

_NOWHERE = "outside operators"
_RISES = 2  # increases that make a leak: memory that grows once may be a cache
_LINES = 5


@dataclass(frozen=True)
class Leak:
    """Memory that an operator allocates in step after step and nobody frees."""

    op: str
    bytes_per_step: float
    bytes: int  # left at the end, in all
    steps: int  # steps in which it grew


@dataclass(frozen=True)
class MemoryRow:
    """The allocations of one operator."""

    op: str
    count: int
    bytes: int  # allocated in total
    at_peak: int  # bytes allocated at the time of the peak


@dataclass(frozen=True)
class Point:
    """The memory in use from a time on."""

    time_us: float  # from the beginning of the window
    bytes: int  # beyond those in use at its beginning
    reserved: int | None  # by a GPU's allocator, in total


@dataclass(frozen=True)
class MemoryReport(Report):
    """The memory of a window, beyond what was in use at its beginning."""

    device: str
    device_name: str
    steps: int
    peak_bytes: int
    end_bytes: int
    allocations: int
    allocated_bytes: int
    fragmentation: float | None  # share of a GPU's reserved memory without a tensor, at the peak
    timeline: list[Point]
    step_bytes: list[int]  # in use at the end of each step
    rows: list[MemoryRow]
    leaks: list[Leak]

    def records(self) -> list[dict[str, Any]]:
        """One row per operator; ``timeline_records`` has the points of the timeline."""
        return flat(self.rows)

    def timeline_records(self) -> list[dict[str, Any]]:
        return flat(self.timeline)

    def scalars(self) -> dict[str, float]:
        found: dict[str, float] = {
            "memory/peak_bytes": self.peak_bytes,
            "memory/end_bytes": self.end_bytes,
            "memory/leaked_bytes_per_step": sum(leak.bytes_per_step for leak in self.leaks),
        }
        if self.fragmentation is not None:
            found["memory/fragmentation"] = self.fragmentation
        return found

    def text(self, rows: int = 20) -> str:
        shown = at_least("MemoryReport.text", "rows", rows, 0)
        headings = [("Operator", 24), ("allocations", 11), ("MB", 8), ("MB at peak", 10)]
        body = [
            [row.op, str(row.count), mega(row.bytes), mega(row.at_peak)]
            for row in self.rows[:shown]
        ]
        subtitle = f"peak {mega(self.peak_bytes)} MB, at the end {mega(self.end_bytes)} MB"
        drawn = table(f"MEMORY ({self.device_name})", subtitle, headings, body)
        return "\n".join([drawn, *self._lines()])

    def _lines(self) -> Iterator[str]:
        if self.fragmentation is not None:
            yield f"{percent(self.fragmentation)} of the reserved memory held no tensor at the peak"
        for leak in self.leaks[:_LINES]:
            yield (
                f"leak: {leak.op} leaves {leak.bytes_per_step:.0f} bytes a step,"
                f" {leak.bytes} in {leak.steps} steps"
            )
        if not self.leaks and self.steps > 1 + _RISES:
            yield f"no leak in {self.steps} steps"


class MemoryProfiler(TraceProfiler):
    """Traces the allocations of PyTorch's allocators: a context manager and a decorator.

    A leak is memory that an operator's allocations leave behind in step after step; to find one,
    call ``step()`` at the end of each step, at least four times. On a CPU, only memory that is
    allocated in the window is seen.

    Args:
        device: ``"cuda"`` or ``"cpu"``: whose memory is traced; by default the GPU's.
        warmup: number of first steps to leave out, in which optimizers and caches allocate what
            they keep.

    >>> model, x = tfk.nn.MLP(64, 256), torch.randn(8, 64)
    >>> with tfk.profile.MemoryProfiler("cpu") as profiler:
    ...     for _ in range(5):
    ...         model(x).sum().backward()
    ...         profiler.step()
    >>> profiler.report.leaks
    []
    """

    _memory = True

    def __init__(self, device: Any = None, warmup: int = 1) -> None:
        super().__init__(device)
        self._warmup = at_least(self.title, "warmup", warmup, 0)

    @property
    def report(self) -> MemoryReport:
        """The report of the last window."""
        return report_of(self.trace, self.device, self._warmup)


def report_of(trace: Trace, device: torch.device, warmup: int = 1) -> MemoryReport:
    """The memory report of a trace for one device."""
    window, on_gpu = Window(trace), device.type == "cuda"
    changes = [
        change
        for change in trace.memory
        if change.on_device == on_gpu and window.begin <= change.time <= window.end
    ]
    timeline = _timeline(changes, window, on_gpu)
    blocks = _blocks(trace, changes)
    top = max(range(len(timeline)), key=lambda i: timeline[i].bytes, default=None)
    peak = timeline[top] if top is not None and timeline[top].bytes > 0 else None
    return MemoryReport(
        device=device.type,
        device_name=machine.device_name(device),
        steps=window.steps,
        peak_bytes=peak.bytes if peak else 0,
        end_bytes=timeline[-1].bytes if timeline else 0,
        allocations=len(blocks),
        allocated_bytes=sum(block.bytes for block in blocks),
        fragmentation=_fragmentation(changes[top]) if on_gpu and top is not None else None,
        timeline=timeline,
        step_bytes=[_standing(changes, end) for end in window.step_ends],
        rows=_rows(blocks, window.begin + peak.time_us if peak else None),
        leaks=_leaks(blocks, window.step_ends[warmup:]),
    )


@dataclass
class _Block:
    op: str
    bytes: int
    begin: float
    end: float = float("inf")

    def stands(self, time: float) -> bool:
        return self.begin <= time < self.end


def _timeline(changes: Iterable[Change], window: Window, on_gpu: bool) -> list[Point]:
    points, held = [], 0
    for change in changes:
        held += change.bytes
        reserved = change.reserved if on_gpu else None
        points.append(Point(change.time - window.begin, held, reserved))
    return points


def _standing(changes: Iterable[Change], time: float) -> int:
    return sum(change.bytes for change in changes if change.time <= time)


def _fragmentation(change: Change) -> float | None:
    return 1 - change.allocated / change.reserved if change.reserved else None


def _blocks(trace: Trace, changes: Iterable[Change]) -> list[_Block]:
    """The blocks that were allocated, each with the time when it was freed."""
    computing = {id(event) for event in operators(trace.roots)}
    blocks: list[_Block] = []
    standing: dict[int, _Block] = {}
    for change in changes:
        if change.bytes > 0:
            running = trace.running(change.thread, change.time)
            block = _Block(_operator(running, computing), change.bytes, change.time)
            blocks.append(block)
            standing[change.address] = block
        elif (freed := standing.pop(change.address, None)) is not None:
            freed.end = change.time
    return blocks


def _operator(running: Event | None, computing: set[int]) -> str:
    """The outermost operator that computes, or else the innermost operator."""
    outward = list(running.ancestors()) if running is not None else []
    inside = [event for event in outward if event.category == "cpu_op"]
    found = next((event for event in inside if id(event) in computing), None)
    event = found or next(iter(inside), None)
    return _NOWHERE if event is None else event.name.rpartition("::")[2]


def _by_op(blocks: Iterable[_Block]) -> dict[str, list[_Block]]:
    groups: dict[str, list[_Block]] = {}
    for block in blocks:
        groups.setdefault(block.op, []).append(block)
    return groups


def _rows(blocks: Iterable[_Block], peak: float | None) -> list[MemoryRow]:
    rows = [
        MemoryRow(
            op=op,
            count=len(found),
            bytes=sum(block.bytes for block in found),
            at_peak=0 if peak is None else sum(b.bytes for b in found if b.stands(peak)),
        )
        for op, found in _by_op(blocks).items()
    ]
    return sorted(rows, key=lambda row: (-row.at_peak, -row.bytes))


def _leaks(blocks: Iterable[_Block], step_ends: Sequence[float]) -> list[Leak]:
    """The leaks: operators whose memory never shrinks from step to step, and grows more than
    once."""
    leaks = []
    for op, found in _by_op(blocks).items():
        standing = [sum(b.bytes for b in found if b.stands(end)) for end in step_ends]
        growth = [after - before for before, after in pairwise(standing)]
        rises = sum(change > 0 for change in growth)
        if rises >= _RISES and min(growth) >= 0:
            leaks.append(Leak(op, sum(growth) / len(growth), sum(growth), rises))
    return sorted(leaks, key=lambda leak: -leak.bytes)
