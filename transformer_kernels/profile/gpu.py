# SPDX-License-Identifier: MIT
"""``GPUProfiler`` times sections of a program on the GPU, at almost no cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol

import torch

from .._errors import ArgumentTypeError, ArgumentValueError
from ..measure import machine
from ..measure.statistics import summarise
from ._recording import Profiler
from ._report import Report, mega, microseconds, percent, table

_WHAT = {
    "cuda": "CUDA events around each section",
    "cpu": "the wall clock around each section: a CPU, no GPU",
}


@dataclass(frozen=True)
class Section:
    """A section of the program, with the statistics of all its runs."""

    name: str
    count: int
    total_us: float
    mean_us: float
    median_us: float
    p10_us: float
    p90_us: float
    share: float  # of the window; sections may contain others


@dataclass(frozen=True)
class GPUReport(Report):
    """The sections of a window, in the order in which each first began."""

    device: str
    device_name: str
    measured_by: str
    window_us: float
    peak_bytes: int | None  # peak of PyTorch's allocator in the window; None on a CPU
    reserved_bytes: int | None
    sections: list[Section]

    def __getitem__(self, name: str) -> Section:
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    def records(self) -> list[dict[str, Any]]:
        return [asdict(section) for section in self.sections]

    def scalars(self) -> dict[str, float]:
        found = {f"sections/{s.name}/mean_us": s.mean_us for s in self.sections}
        found["sections/window_us"] = self.window_us
        if self.peak_bytes is not None:
            found["memory/peak_bytes"] = self.peak_bytes
        return found

    def text(self) -> str:
        headings = [("Section", 20), ("times", 6), ("us", 9), ("median", 8), ("10 %", 8),
                    ("90 %", 8), ("share", 7)]  # fmt: skip
        body = [
            [
                s.name, str(s.count), microseconds(s.total_us), microseconds(s.median_us),
                microseconds(s.p10_us), microseconds(s.p90_us), percent(s.share),
            ]
            for s in self.sections
        ]  # fmt: skip
        subtitle = f"{self.measured_by}; {microseconds(self.window_us)} us in all"
        if self.peak_bytes is not None:
            subtitle += f", {mega(self.peak_bytes)} of {mega(self.reserved_bytes)} MB at the peak"
        return table(f"SECTIONS ({self.device_name})", subtitle, headings, body)


class _Watch(Protocol):
    def stop(self) -> None: ...

    def microseconds(self) -> float:
        """The watch's time, once it was stopped and the device has passed that point."""


class _Clock:
    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._end = self._begin

    def stop(self) -> None:
        self._end = time.perf_counter()

    def microseconds(self) -> float:
        return (self._end - self._begin) * 1e6


class _Events:
    """A pair of events on the current stream; no one waits for them before the window ends."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def microseconds(self) -> float:
        return float(self._begin.elapsed_time(self._end)) * 1e3


class GPUProfiler(Profiler):
    """Times sections of a program on the GPU: a context manager and a decorator.

    A section is a pair of CUDA events on the current stream. Nothing waits for the GPU before the
    window ends, so the program runs as it would without the profiler. :class:`KernelProfiler` lists
    kernels by name.

    Args:
        device: by default the GPU; without one this is an error. ``"cpu"`` uses the wall clock
            instead of events, which the report says.

    >>> x = torch.randn(64, 64)
    >>> with tfk.profile.GPUProfiler("cpu") as profiler:  # without an argument: the GPU
    ...     with profiler.section("product"):
    ...         y = x @ x
    >>> profiler.report.sections[0].name
    'product'
    """

    def __init__(self, device: Any = None) -> None:
        if device is None and not torch.cuda.is_available():
            raise ArgumentValueError(
                "GPUProfiler: device is None and PyTorch sees no GPU, expected 'cpu' for the wall"
                " clock in its place"
            )
        super().__init__(device)
        self._make: Callable[[], _Watch] = _Events if self.device.type == "cuda" else _Clock
        self._window: _Watch | None = None
        self._watches: dict[str, list[_Watch]] = {}
        self._report: GPUReport | None = None

    def section(self, name: str) -> _Section:
        """A context manager and a decorator for a section of the window."""
        if not isinstance(name, str):
            raise ArgumentTypeError(f"{self.title}: name is {type(name).__name__}, expected a str")
        return _Section(self, name)

    @property
    def report(self) -> GPUReport:
        """The report of the last window."""
        return self._recorded(self._report)

    def begin(self, name: str) -> _Watch:
        """Begins a section that the caller stops; :meth:`section` does both."""
        self._require_running("section")
        watch = self._make()
        self._watches.setdefault(name, []).append(watch)
        return watch

    def _start(self) -> None:
        self._watches = {}
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self._window = self._make()

    def _stop(self) -> None:
        assert self._window is not None
        self._window.stop()
        peak = reserved = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            peak = int(torch.cuda.max_memory_allocated(self.device))
            reserved = int(torch.cuda.max_memory_reserved(self.device))
        window = self._window.microseconds()
        self._report = GPUReport(
            device=self.device.type,
            device_name=machine.device_name(self.device),
            measured_by=_WHAT[self.device.type],
            window_us=window,
            peak_bytes=peak,
            reserved_bytes=reserved,
            sections=[
                _section(name, [watch.microseconds() for watch in watches], window)
                for name, watches in self._watches.items()
            ],
        )


class _Section(ContextDecorator):
    """Times a section; it may be entered again, also inside itself."""

    def __init__(self, profiler: GPUProfiler, name: str) -> None:
        self._profiler = profiler
        self._name = name
        self._running: list[_Watch] = []

    def __enter__(self) -> None:
        self._running.append(self._profiler.begin(self._name))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.pop().stop()


def _section(name: str, times: list[float], window: float) -> Section:
    found = summarise(times)
    return Section(
        name=name,
        count=len(times),
        total_us=sum(times),
        mean_us=found.mean,
        median_us=found.median,
        p10_us=found.p10,
        p90_us=found.p90,
        share=sum(times) / window if window else 0.0,
    )
