# SPDX-License-Identifier: MIT
"""Says whether other programs keep the machine busy, so that ratios of times would be noise.

Two signs are looked for: the share of the processors that other programs took while this one
measured, and copies that are far slower at their median than at best. A run measures several short
copies. Where that share is known, they are compared with each other: what slows all of them alike,
as on a shared host, slows both sides of a ratio. Elsewhere they are compared with the best median
that was ever seen on this machine, which is kept in the user's cache.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from transformer_kernels import _cache
from transformer_kernels.measure.ceilings import measure_copy
from transformer_kernels.measure.machine import device_name
from transformer_kernels.measure.timing import make_timer

MOST_SHARE = 0.15  # of all processors that this process may use
LEAST_COPY = 0.6  # of the best copy
_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, among the columns of /proc/stat


@dataclass(frozen=True)
class Signs:
    """The signs of other programs in a window of measurements; None where one is not known."""

    share: float | None  # of the processors, which others took
    load: float | None  # programs that wanted a processor, an average of the last minute
    copies: tuple[float, ...]  # GB/s of the window's measurements
    best_gbps: float

    @property
    def reason(self) -> str | None:
        """Why the machine counts as busy; None where it does not."""
        found = []
        if self.share is not None and self.share > MOST_SHARE:
            load = "" if self.load is None else f" (load average {self.load:.1f})"
            found.append(f"other programs took {100 * self.share:.0f} % of its processors{load}")
        if median(self.copies) < LEAST_COPY * self.best_gbps:
            found.append(
                f"copies ran at {median(self.copies):.1f} GB/s, the median of {len(self.copies)}"
                f" measurements, and at {self.best_gbps:.1f} at best"
            )
        return "; ".join(found) or None


class Watch:
    """Watches from when it is made. The caller samples a copy now and then, or adds the rate of one
    that it measured.

    >>> watch = Watch(torch.device("cpu"))
    >>> for gbps in (19.5, 7.0, 20.1):
    ...     watch.add(gbps)
    >>> watch.signs().copies
    (19.5, 7.0, 20.1)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = _Seconds.now()
        self._copies: list[float] = []

    def sample(self) -> None:
        """Measures a copy for a moment."""
        self.add(measure_copy(make_timer(self._device, "events"), self._device))

    def add(self, copy_gbps: float) -> None:
        self._copies.append(copy_gbps)

    def signs(self) -> Signs:
        """The signs since the watch was made; at least one copy has to be known."""
        load, share = _load(), None
        if self._device.type == "cpu":
            share = self._begin.share_of_others(_Seconds.now(), load)
        best = max(self._copies) if share is not None else self._best_ever()
        return Signs(share, load, tuple(self._copies), best)

    def _best_ever(self) -> float:
        return _keep_best(self._device, median(self._copies))


@dataclass(frozen=True)
class _Seconds:
    """Seconds that passed since some moment, and that this process used of all processors."""

    passed: float
    own: float
    of_processors: tuple[float, float] | None  # busy, and in all; None outside Linux

    @classmethod
    def now(cls) -> _Seconds:
        spent = os.times()
        own = time.process_time() + spent.children_user + spent.children_system
        return cls(time.perf_counter(), own, _seconds_of_processors())

    def share_of_others(self, end: _Seconds, load: float | None) -> float | None:
        """The share of the processors that other programs took from now to ``end``, by the load
        average where the system does not count it."""
        own = end.own - self.own
        if self.of_processors is not None and end.of_processors is not None:
            busy, every = (
                b - a for a, b in zip(self.of_processors, end.of_processors, strict=True)
            )
            return max(0.0, busy - own) / every if every > 0 else None
        if load is None or end.passed <= self.passed:
            return None
        return max(0.0, load - own / (end.passed - self.passed)) / (os.cpu_count() or 1)


def _load() -> float | None:
    """The load average of the last minute; None where the system has none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _seconds_of_processors() -> tuple[float, float] | None:
    """The seconds that the processors of this process were busy, and could have been busy."""
    try:
        text = _STAT.read_text(encoding="ascii")
    except OSError:
        return None
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in text.splitlines()]
    ticks = [[int(field) for field in line[1:]] for line in lines if line and line[0] in usable]
    # The last two columns, of guests, are part of the first two.
    every = sum(sum(line[:8]) for line in ticks)
    idle = sum(line[column] for line in ticks for column in _IDLE)
    second = os.sysconf("SC_CLK_TCK")
    return (every - idle) / second, every / second


def _keep_best(device: torch.device, copy_gbps: float) -> float:
    """The best median of copies that was seen on the device, this one included."""
    path, name = _cache.folder() / "copies.json", device_name(device)
    try:
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        known = {}
    best = max(copy_gbps, float(known.get(name, 0.0)))
    if best != known.get(name):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**known, name: best}), encoding="utf-8")
        except OSError:
            pass  # without a cache every run is the first
    return best
