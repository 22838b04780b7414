# SPDX-License-Identifier: MIT
"""``KernelProfiler`` lists the kernels that ran, what launched them, what our ops moved, and idle
gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

import torch

from .._library import NAMESPACE
from ..measure import machine, watch
from ..measure.statistics import quantile
from . import work
from ._arguments import at_least
from ._recording import TraceProfiler, Window
from ._report import Report, flat, mega, microseconds, number, percent, table
from .trace import Event, Trace

_LARGEST_GAPS = 10
_OCCUPANCY = "est. achieved occupancy %"


@dataclass(frozen=True)
class KernelRow:
    """A kernel on a GPU, or an operator on a CPU, with all its calls in the window."""

    name: str
    op: str | None  # the op that launched it
    count: int
    total_us: float
    share: float  # of the window
    occupancy: float | None  # warps per multiprocessor, as a share of the limit, by the launch
    grid: tuple[int, ...] | None  # grid of the last launch
    block: tuple[int, ...] | None
    registers: int | None  # per thread
    shared_memory: int | None  # bytes per block

    @property
    def mean_us(self) -> float:
        return self.total_us / self.count


@dataclass(frozen=True)
class OpRow:
    """One of our ops, with all its calls in the window."""

    name: str
    count: int
    total_us: float  # time of its kernels; on a CPU, of its calls
    share: float
    bytes: int | None  # size of its tensors
    flops: float | None
    gbps: float | None
    tflops: float | None


@dataclass(frozen=True)
class Gap:
    """A time in which no kernel ran."""

    start_us: float  # from the beginning of the window
    duration_us: float
    after: str | None
    before: str | None


@dataclass(frozen=True)
class KernelReport(Report):
    """The kernels and ops of a window; times are microseconds, summed over all its steps."""

    device: str
    device_name: str
    steps: int
    window_us: float
    busy_us: float  # time in which a kernel or a copy ran
    launches: int  # the host's calls that launched kernels; on a CPU, operators
    launch_us: float | None  # host time of such a call, median; None on a CPU
    delay_us: float | None  # from the end of that call to the kernel's start, median
    copies: int
    kernels: list[KernelRow]
    ops: list[OpRow]
    gaps: list[Gap]  # the longest ones

    @property
    def step_us(self) -> float:
        return self.window_us / self.steps

    @property
    def idle_us(self) -> float:
        return self.window_us - self.busy_us

    @property
    def share_of_ours(self) -> float:
        """The share of the window's time that our ops take."""
        return sum(row.share for row in self.ops)

    @property
    def names(self) -> list[str]:
        """The kernels' names, the longest first."""
        return [row.name for row in self.kernels]

    def records(self) -> list[dict[str, Any]]:
        """One row per kernel; ``op_records`` has the rows of our ops."""
        return flat(self.kernels)

    def op_records(self) -> list[dict[str, Any]]:
        return flat(self.ops)

    def scalars(self) -> dict[str, float]:
        found = {
            "kernels/step_us": self.step_us,
            "kernels/launches_per_step": self.launches / self.steps,
            "kernels/idle_share": self.idle_us / self.window_us if self.window_us else 0.0,
            "kernels/share_of_ours": self.share_of_ours,
        }
        return found | {f"ops/{row.name}/gbps": row.gbps for row in self.ops if row.gbps}

    def text(self, rows: int = 20) -> str:
        """The tables of kernels and of our ops, ``rows`` lines each, longest first, and the idle
        gaps."""
        shown = at_least("KernelReport.text", "rows", rows, 0)
        parts = [self._kernel_table(shown)]
        if self.ops:
            parts.append(self._op_table(shown))
        return "\n".join([*parts, *self._lines()])

    def _kernel_table(self, rows: int) -> str:
        kind = "KERNELS" if self.device == "cuda" else "OPERATORS"
        headings = [("Name", 24), ("launched by", 12), ("calls", 6), ("us", 9), ("each", 8),
                    ("share", 7), ("occupancy", 9), ("grid", 8), ("block", 8)]  # fmt: skip
        body = [
            [
                row.name, row.op or "-", f"{row.count / self.steps:g}",
                microseconds(row.total_us / self.steps), microseconds(row.mean_us),
                percent(row.share), percent(row.occupancy), _sizes(row.grid), _sizes(row.block),
            ]
            for row in self.kernels[:rows]
        ]  # fmt: skip
        left = len(self.kernels) - len(body)
        more = f"; {left} more are not shown" if left else ""
        subtitle = f"one of {self.steps} steps of {microseconds(self.step_us)} us{more}"
        return table(f"{kind} ({self.device_name})", subtitle, headings, body)

    def _op_table(self, rows: int) -> str:
        headings = [("Op", 24), ("calls", 6), ("us", 9), ("share", 7), ("MB", 8), ("GB/s", 8),
                    ("TFLOP/s", 8)]  # fmt: skip
        body = [
            [
                row.name, f"{row.count / self.steps:g}", microseconds(row.total_us / self.steps),
                percent(row.share), mega(None if row.bytes is None else row.bytes / self.steps),
                number(row.gbps), number(row.tflops, ".3f"),
            ]
            for row in self.ops[:rows]
        ]  # fmt: skip
        return table("OUR OPS", "bytes of their tensors, operations of products", headings, body)

    def _lines(self) -> Iterator[str]:
        what = "kernels" if self.device == "cuda" else "operators"
        busy = self.busy_us / self.window_us if self.window_us else 0.0
        yield f"{self.launches / self.steps:g} launches a step; {what} ran {percent(busy)} of it"
        if self.launch_us is not None and self.delay_us is not None:
            yield (
                f"a launch takes the host {self.launch_us:.2f} us, and its kernel starts"
                f" {self.delay_us:.2f} us later"
            )
        for gap in self.gaps[:3]:
            yield (
                f"none ran for {microseconds(gap.duration_us)} us between"
                f" {gap.after or 'the beginning'} and {gap.before or 'the end'}"
            )


class KernelProfiler(TraceProfiler):
    """Traces kernels with PyTorch's profiler: a context manager and a decorator.

    On a GPU, kernels and their launches come from CUPTI. On a CPU, rows are the operators that
    reach PyTorch's dispatcher, without views and allocations, and times include PyTorch's overhead
    of the calls. Only one profiler of PyTorch can run at a time.

    Args:
        device: ``"cuda"`` or ``"cpu"``; by default the GPU where there is one.

    >>> model, x = tfk.nn.MLP(64, 256), torch.randn(8, 64)
    >>> with tfk.profile.KernelProfiler("cpu") as profiler:
    ...     for _ in range(3):
    ...         y = model(x)
    ...         profiler.step()
    >>> profiler.report.steps
    3
    """

    @property
    def report(self) -> KernelReport:
        """The report of the last window."""
        return report_of(self.trace, self.device)


def report_of(trace: Trace, device: torch.device) -> KernelReport:
    """The report of a trace: of a GPU's kernels, or of a CPU's operators."""
    window = Window(trace)
    on_gpu = device.type == "cuda"
    kernels = trace.kernels if on_gpu else list(operators(trace.roots))
    busy = trace.on_device if on_gpu else kernels
    launches = [(launch, k) for k in kernels if (launch := trace.launch_of(k)) is not None]
    calls = {id(launch): launch for launch, _ in launches}.values()
    delays = [max(0.0, kernel.start - launch.end) for launch, kernel in launches]
    spans = _merged(busy)
    gaps = sorted(_gaps(spans, window), key=lambda gap: -gap.duration_us)
    return KernelReport(
        device=device.type,
        device_name=machine.device_name(device),
        steps=window.steps,
        window_us=window.duration,
        busy_us=sum(end - start for start, end, _, _ in spans),
        launches=len(calls) if on_gpu else len(kernels),
        launch_us=_median(call.duration for call in calls),
        delay_us=_median(delays),
        copies=len(trace.on_device) - len(trace.kernels),
        kernels=_kernel_rows(trace, kernels, window),
        ops=_op_rows(trace, on_gpu, window),
        gaps=gaps[:_LARGEST_GAPS],
    )


# ---- a CPU's operators --------------------------------------------------------------------------


def operators(events: Iterable[Event]) -> Iterator[Event]:
    """The outermost operators that compute. An operator made of others is replaced by those."""
    for event in events:
        found = _computes(event)
        if found is None:
            yield from operators(event.children)
        elif found:
            yield event


def _computes(event: Event) -> bool | None:
    """Whether the event computes; None where the operators inside it do."""
    if event.category != "cpu_op":
        return None
    if event.parent is not None and event.parent.name.startswith(watch.GRAPH):
        return watch.part_of_graph(event.name) is not None
    return _overload_computes(event.name, len(event.arguments.get("Input Dims", ())))


@lru_cache(maxsize=4096)
def _overload_computes(name: str, arguments: int) -> bool | None:
    namespace, _, short = name.partition("::")
    packet: Any = getattr(getattr(torch.ops, namespace), short, None) if short else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None  # a node of autograd, or a graph
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    overloads = [
        o for o in overloads if torch._C._dispatch_has_kernel(o.name())
    ]  # without overloads of TorchScript
    fitting = [o for o in overloads if len(o._schema.arguments) == arguments] or overloads
    if namespace == NAMESPACE:
        return work.is_ours(name) or None
    if any(map(_is_made_of_others, fitting)):
        return None
    return watch.is_operator(fitting[0])


def _is_made_of_others(overload: Any) -> bool:
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key))


# ---- rows ---------------------------------------------------------------------------------------


def _kernel_rows(trace: Trace, kernels: Sequence[Event], window: Window) -> list[KernelRow]:
    groups: dict[tuple[str, str | None], list[Event]] = {}
    for kernel in kernels:
        launcher = trace.operator_of(kernel) if kernel.category != "cpu_op" else None
        op = _launcher(launcher) if launcher is not None else None
        groups.setdefault((short_name(kernel), op), []).append(kernel)
    rows = [_kernel_row(name, op, calls, window) for (name, op), calls in groups.items()]
    return sorted(rows, key=lambda row: -row.total_us)


def short_name(kernel: Event) -> str:
    """The name that the benchmark of the levels gives to this kernel."""
    if kernel.category == "cpu_op":
        return kernel.name.rpartition("::")[2]
    return watch.short_name(kernel.name)


def _launcher(event: Event) -> str | None:
    """The op that launched it: the innermost of ours around it, or else the innermost operator."""
    outward = [e.name for e in event.ancestors() if e.category == "cpu_op"]
    ours = [name for name in outward if work.is_ours(name)]
    name = next(iter(ours or outward), None)
    return None if name is None else name.rpartition("::")[2]


def _kernel_row(name: str, op: str | None, calls: Sequence[Event], window: Window) -> KernelRow:
    total = sum(call.duration for call in calls)
    last = calls[-1].arguments
    occupied = [(c.arguments[_OCCUPANCY], c.duration) for c in calls if _OCCUPANCY in c.arguments]
    weight = sum(duration for _, duration in occupied)
    return KernelRow(
        name=name,
        op=op,
        count=len(calls),
        total_us=total,
        share=total / window.duration if window.duration else 0.0,
        occupancy=sum(o * d for o, d in occupied) / weight / 100 if weight else None,
        grid=tuple(last["grid"]) if "grid" in last else None,
        block=tuple(last["block"]) if "block" in last else None,
        registers=last.get("registers per thread"),
        shared_memory=last.get("shared memory"),
    )


def _op_rows(trace: Trace, on_gpu: bool, window: Window) -> list[OpRow]:
    times = trace.times_on_device(_innermost_of_ours) if on_gpu else None
    groups: dict[str, list[Event]] = {}
    for event in trace.operators:
        if work.is_ours(event.name):
            groups.setdefault(event.name.partition("::")[2], []).append(event)
    rows = []
    for name, calls in groups.items():
        total = sum(call.duration if times is None else times.get(id(call), 0.0) for call in calls)
        rows.append(_op_row(name, calls, total, window))
    return sorted(rows, key=lambda row: -row.total_us)


def _innermost_of_ours(operators: Iterable[Event]) -> Iterable[Event]:
    return islice((event for event in operators if work.is_ours(event.name)), 1)


def _op_row(name: str, calls: Sequence[Event], total: float, window: Window) -> OpRow:
    works = [work.of_event(call) for call in calls]
    moved = _sum([None if found is None else found.bytes for found in works])
    flops = _sum([None if found is None else found.flops for found in works])
    return OpRow(
        name=name,
        count=len(calls),
        total_us=total,
        share=total / window.duration if window.duration else 0.0,
        bytes=None if moved is None else int(moved),
        flops=flops,
        gbps=moved / total / 1e3 if moved is not None and total else None,
        tflops=flops / total / 1e6 if flops is not None and total else None,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum of the values; None where one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


# ---- gaps ---------------------------------------------------------------------------------------

_Span = tuple[float, float, str, str]  # begin, end, and the names of the first and the last kernel


def _merged(events: Iterable[Event]) -> list[_Span]:
    """The spans of time in which at least one event ran."""
    spans: list[_Span] = []
    for event in sorted(events, key=lambda event: event.start):
        name = short_name(event)
        if spans and event.start <= spans[-1][1]:
            begin, end, first, last = spans[-1]
            spans[-1] = (begin, max(end, event.end), first, name if event.end > end else last)
        else:
            spans.append((event.start, event.end, name, name))
    return spans


def _gaps(spans: Sequence[_Span], window: Window) -> Iterator[Gap]:
    edges = [(window.begin, window.begin, None, None), *spans, (window.end, window.end, None, None)]
    for (_, end, _, after), (begin, _, before, _) in pairwise(edges):
        if begin > end:
            yield Gap(end - window.begin, begin - end, after, before)


def _median(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return quantile(ordered, 0.5) if ordered else None


def _sizes(sizes: tuple[int, ...] | None) -> str:
    return "-" if sizes is None else "x".join(map(str, sizes))
