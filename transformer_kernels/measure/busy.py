# SPDX-License-Identifier: MIT
"""Says whether other programs keep the machine busy, so that ratios of times would be noise.

Two signs are looked for: the share of the processors that other programs took while this one
measured (Linux alone counts it by processor), and a copy far slower than the fastest that was ever
seen on this machine, which is kept in the user's cache.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from transformer_kernels import _cache
from transformer_kernels.measure.machine import device_name

MOST_SHARE = 0.15  # of all processors that this process may use
LEAST_COPY = 0.6  # of the fastest copy
_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, among the columns of /proc/stat


@dataclass(frozen=True)
class Signs:
    """The signs of other programs in a window of measurements; None where one is not known."""

    share: float | None
    copy_gbps: float
    fastest_gbps: float

    @property
    def reason(self) -> str | None:
        """Why the machine counts as busy; None where it does not."""
        found = []
        if self.share is not None and self.share > MOST_SHARE:
            found.append(f"other programs took {100 * self.share:.0f} % of its processors")
        if self.copy_gbps < LEAST_COPY * self.fastest_gbps:
            found.append(
                f"a copy ran at {self.copy_gbps:.1f} GB/s, and at {self.fastest_gbps:.1f} before"
            )
        return "; ".join(found) or None


class Watch:
    """Watches from when it is made; the device's own copy rate is told by the caller.

    >>> watch = Watch(torch.device("cpu"))
    >>> watch.signs(copy_gbps=19.5).reason
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = _seconds()

    def signs(self, copy_gbps: float) -> Signs:
        return Signs(self._share(), copy_gbps, _keep_fastest(self._device, copy_gbps))

    def _share(self) -> float | None:
        end = _seconds()
        if self._begin is None or end is None or self._device.type != "cpu":
            return None
        busy, own, every = (b - a for a, b in zip(self._begin, end, strict=True))
        return max(0.0, busy - own) / every if every > 0 else None


def _seconds() -> tuple[float, float, float] | None:
    """The seconds that the processors of this process were busy in all, with this process, and
    could have been busy."""
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
    spent = os.times()
    own = time.process_time() + spent.children_user + spent.children_system
    second = os.sysconf("SC_CLK_TCK")
    return (every - idle) / second, own, every / second


def _keep_fastest(device: torch.device, copy_gbps: float) -> float:
    """The fastest copy that was seen on the device, this one included."""
    path, name = _cache.folder() / "copies.json", device_name(device)
    try:
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        known = {}
    fastest = max(copy_gbps, float(known.get(name, 0.0)))
    if fastest != known.get(name):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**known, name: fastest}), encoding="utf-8")
        except OSError:
            pass  # without a cache every run is the first
    return fastest
