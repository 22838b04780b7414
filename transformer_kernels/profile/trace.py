# SPDX-License-Identifier: MIT
"""Reads a trace of PyTorch's profiler (Chrome's format): operators, launches, kernels, memory.

All times are microseconds. The operators of a thread form a tree; a kernel knows the operator that
launched it and the call of the CUDA runtime or driver that did so.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_OPERATOR, _ANNOTATION = "cpu_op", "user_annotation"
_KERNEL = "kernel"
_ON_DEVICE = (_KERNEL, "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_MEMORY = "[memory]"


@dataclass(eq=False)
class Event:
    """A time in which something ran."""

    name: str
    category: str
    start: float
    duration: float
    thread: tuple[Any, Any]  # process and thread; for a kernel, device and stream
    arguments: dict[str, Any]
    parent: Event | None = None
    children: list[Event] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.duration

    def ancestors(self) -> Iterator[Event]:
        """The event itself and those around it, outwards."""
        event: Event | None = self
        while event is not None:
            yield event
            event = event.parent


@dataclass(frozen=True)
class Change:
    """An allocation, or the freeing of one (negative bytes)."""

    time: float
    bytes: int
    address: int
    on_device: bool
    allocated: int  # in total, as the allocator counts
    reserved: int
    thread: tuple[Any, Any]


class Trace:
    """A trace, read from its JSON text."""

    def __init__(self, text: str | bytes) -> None:
        self.text = text
        events = json.loads(text)["traceEvents"]
        timed = [_event(e) for e in events if e.get("ph") == "X" and "dur" in e]
        self._hosts = [e for e in timed if e.category in (_OPERATOR, _ANNOTATION)]
        self.roots = _nest(self._hosts)
        self.on_device = sorted(
            (e for e in timed if e.category in _ON_DEVICE), key=lambda event: event.start
        )
        self.calls = [e for e in timed if e.category in _CALLS]
        changes = (e for e in events if e.get("name") == _MEMORY)
        self.memory = sorted(map(_change, changes), key=lambda change: change.time)

    @property
    def kernels(self) -> list[Event]:
        """Kernels on the GPU, without copies and fills of memory."""
        return [event for event in self.on_device if event.category == _KERNEL]

    @cached_property
    def annotations(self) -> list[Event]:
        found = (event for event in self._hosts if event.category == _ANNOTATION)
        return sorted(found, key=lambda event: event.start)

    @cached_property
    def operators(self) -> list[Event]:
        found = (event for event in self._hosts if event.category == _OPERATOR)
        return sorted(found, key=lambda event: event.start)

    def operator_of(self, on_device: Event) -> Event | None:
        """The innermost operator that launched the kernel or copy."""
        return self._by_id.get(on_device.arguments.get("External id"))

    def launch_of(self, on_device: Event) -> Event | None:
        """The host's call that launched it; the launch of a CUDA graph launches all its kernels."""
        return self._by_correlation.get(on_device.arguments.get("correlation"))

    def times_on_device(
        self, owners: Callable[[Iterator[Event]], Iterable[Event]]
    ) -> dict[int, float]:
        """Sums the device time of everything launched within an event, by the event's id.

        Args:
            owners: chooses among the events around a launch, which come from the innermost
                outwards.
        """
        times: dict[int, float] = {}
        for on_device in self.on_device:
            launcher = self.operator_of(on_device)
            for event in owners(launcher.ancestors()) if launcher is not None else ():
                times[id(event)] = times.get(id(event), 0.0) + on_device.duration
        return times

    def running(self, thread: tuple[Any, Any], time: float) -> Event | None:
        """The innermost operator or annotation that runs in a thread at a time."""
        events, starts = self._by_thread.get(thread, ([], []))
        place = bisect_right(starts, time) - 1
        event = events[place] if place >= 0 else None
        while event is not None and event.end < time:
            event = event.parent
        return event

    @cached_property
    def _by_id(self) -> dict[Any, Event]:
        return {e.arguments.get("External id"): e for e in self._hosts}

    @cached_property
    def _by_correlation(self) -> dict[Any, Event]:
        return {e.arguments.get("correlation"): e for e in self.calls}

    @cached_property
    def _by_thread(self) -> dict[tuple[Any, Any], tuple[list[Event], list[float]]]:
        threads: dict[tuple[Any, Any], list[Event]] = {}
        for event in sorted(self._hosts, key=_outermost_first):
            threads.setdefault(event.thread, []).append(event)
        return {key: (events, [e.start for e in events]) for key, events in threads.items()}


def _event(raw: dict[str, Any]) -> Event:
    return Event(
        raw["name"], raw.get("cat", ""), float(raw["ts"]), float(raw["dur"]),
        (raw.get("pid"), raw.get("tid")), raw.get("args", {}),
    )  # fmt: skip


def _change(raw: dict[str, Any]) -> Change:
    given = raw["args"]
    return Change(
        time=float(raw["ts"]),
        bytes=int(given["Bytes"]),
        address=int(given["Addr"]),
        on_device=int(given["Device Type"]) != 0,
        allocated=int(given["Total Allocated"]),
        reserved=int(given["Total Reserved"]),
        thread=(raw.get("pid"), raw.get("tid")),
    )


def _outermost_first(event: Event) -> tuple[float, float]:
    return event.start, -event.duration


def _nest(events: list[Event]) -> list[Event]:
    """Arranges events that lie in one another as trees: one forest for all threads."""
    roots: list[Event] = []
    open_events: dict[tuple[Any, Any], list[Event]] = {}
    for event in sorted(events, key=_outermost_first):
        stack = open_events.setdefault(event.thread, [])
        while stack and stack[-1].end <= event.start:
            stack.pop()
        if stack:
            event.parent = stack[-1]
            stack[-1].children.append(event)
        else:
            roots.append(event)
        stack.append(event)
    return roots
