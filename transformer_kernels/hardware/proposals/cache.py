# SPDX-License-Identifier: MIT
"""A set-associative cache that writes back, simulated over the lines that a kernel touches.

Sets do not know of each other, so all of them advance together: step k handles the k-th access of
each set, as vectors. A policy is a number for each access, the worth of the line from then on: a
full set gives up the line of least worth, and a line that is worth less than all that are there
passes by the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LINE = 128  # bytes of a cache line on NVIDIA's cards

LOAD, STORE, ADD = range(3)  # STORE writes whole lines; ADD reads, adds and writes
FIRST, LAST = 0, 1  # what a load asks to be evicted, as the kernels' cache hints do

_EMPTY = -1
_NEVER = 1 << 62
_SAMPLES, _SETS = 1, 2  # two hashes of a line that do not know of each other


@dataclass(frozen=True)
class Trace:
    """Accesses to cache lines in their order in time, (N,) each.

    Args:
        lines: int64, the address over the bytes of a line.
        kinds: int8, LOAD, STORE or ADD.
        hints: int8, FIRST or LAST.
    """

    lines: Tensor
    kinds: Tensor
    hints: Tensor


@dataclass(frozen=True)
class Cache:
    """A cache of ``sets`` x ``ways`` lines. ``hashed`` scatters addresses over the sets, as caches
    of GPUs do; without it the low bits choose the set."""

    sets: int
    ways: int
    hashed: bool = True

    @classmethod
    def of_bytes(cls, size: int, ways: int = 16, hashed: bool = True, one_in: int = 1) -> Cache:
        """A cache of so many bytes, or its share for one in so many lines, see :func:`sample`."""
        return cls(max(1, size // (LINE * ways * one_in)), ways, hashed)

    def set_of(self, lines: Tensor) -> Tensor:
        return (_mixed(lines, _SETS) if self.hashed else lines) % self.sets


@dataclass(frozen=True)
class Traffic:
    """The outcome of a simulation, in accesses and lines."""

    accesses: int
    hits: int
    fetched: int  # lines that memory gave
    written: int  # lines that memory took

    @property
    def bytes(self) -> int:
        return (self.fetched + self.written) * LINE


def _mixed(numbers: Tensor, seed: int) -> Tensor:
    """A hash of 31 bits, by the last steps of SplitMix64."""
    mixed = numbers + seed * 0x1E3779B97F4A7C15
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed >> 31) & 0x7FFFFFFF


def sample(one_in: int) -> Callable[[Tensor], Tensor]:
    """The mask of one in so many lines, chosen by their addresses. A cache of the same share of the
    sets treats them as the whole cache treats all lines (Waldspurger and others, "Cache Modeling
    and Optimization using Miniature Simulations", 2017)."""
    return lambda lines: _mixed(lines, _SAMPLES) % one_in == 0


# ---- policies -----------------------------------------------------------------------------------


def next_uses(lines: Tensor) -> Tensor:
    """When each access's line is touched next; a number past the end where it is not."""
    order = torch.sort(lines, stable=True).indices
    follows = lines[order][1:] == lines[order][:-1]
    found = torch.full_like(lines, _NEVER)
    found[order[:-1][follows]] = order[1:][follows]
    return found


def uses_left(lines: Tensor) -> Tensor:
    """How often each access's line is touched again."""
    order, which, counts = _groups(lines)
    place = torch.arange(len(lines)) - (counts.cumsum(0) - counts)[which]
    return torch.empty_like(lines).scatter_(0, order, counts[which] - 1 - place)


def _groups(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The places of equal numbers side by side, in order; the group of each, and groups' sizes."""
    order = torch.sort(numbers, stable=True).indices
    _, which, counts = torch.unique_consecutive(
        numbers[order], return_inverse=True, return_counts=True
    )
    return order, which, counts


def _lru(trace: Trace) -> Tensor:
    return torch.arange(len(trace.lines))


def _hints(trace: Trace) -> Tensor:
    """The kernels say of each load whether it is evicted first or last; within these, LRU."""
    return trace.hints.long() * (_NEVER >> 1) + _lru(trace)


def _counted(trace: Trace) -> Tensor:
    """The kernel says with each load how many more will come: a line with none left passes by, or
    goes first. Among the others LRU decides."""
    return (uses_left(trace.lines) > 0).long() * (_NEVER >> 1) + _lru(trace)


def _pinned(trace: Trace) -> Tensor:
    """Counted, but lines with uses left are never given up: others pass by. A scan that is
    repeated and too long keeps its first part instead of nothing."""
    return (uses_left(trace.lines) > 0).long() * (_NEVER >> 1) - _first_touch(trace.lines)


def _first_touch(lines: Tensor) -> Tensor:
    """When each access's line was touched first."""
    order, which, counts = _groups(lines)
    return torch.empty_like(lines).scatter_(0, order, order[counts.cumsum(0) - counts][which])


def _belady(trace: Trace) -> Tensor:
    """The future is known: the line that is touched last goes. No policy has more hits."""
    return -next_uses(trace.lines)


POLICIES: Mapping[str, Callable[[Trace], Tensor]] = {
    "lru": _lru,
    "hints": _hints,
    "counted": _counted,
    "pinned": _pinned,
    "belady": _belady,
}


# ---- simulation ---------------------------------------------------------------------------------


def simulate(trace: Trace, cache: Cache, policy: str) -> Traffic:
    """Runs a trace through a cache that is empty at first; what it wrote leaves it at the end.

    >>> import torch
    >>> from transformer_kernels.hardware.proposals import cache
    >>> lines = torch.tensor([0, 1, 2, 0, 1, 2])
    >>> loads = cache.Trace(lines, torch.zeros(6).char(), torch.zeros(6).char())
    >>> two_lines = cache.Cache(sets=1, ways=2)
    >>> [cache.simulate(loads, two_lines, name).hits for name in ("lru", "belady")]
    [0, 2]

    Raises:
        KeyError: there is no such policy; POLICIES has them.
    """
    worth = POLICIES[policy](trace)
    return _Sets(cache, trace, worth).run()


def least(trace: Trace) -> int:
    """Bytes that any cache moves: lines that are read before they are written come in once, and
    those that are written leave once.

    >>> import torch
    >>> lines = torch.tensor([7, 7, 8])
    >>> least(Trace(lines, torch.tensor([LOAD, ADD, STORE]).char(), torch.zeros(3).char())) // LINE
    3
    """
    first = _first_touch(trace.lines) == _lru(trace)
    fetched = int((first & (trace.kinds != STORE)).sum())
    return (fetched + len(torch.unique(trace.lines[trace.kinds != LOAD]))) * LINE


class _Sets:
    """The state of all sets, (sets, ways) each; sets with many accesses come first."""

    def __init__(self, cache: Cache, trace: Trace, worth: Tensor) -> None:
        which, self._steps, order = _by_step(cache.set_of(trace.lines))
        self._trace, self._worths = trace, worth[order]
        self._lines, self._kinds = trace.lines[order], trace.kinds[order]
        shape = (which, cache.ways)
        self._tags = torch.full(shape, _EMPTY)
        self._worth = torch.full(shape, -_NEVER - 1)
        self._dirty = torch.zeros(shape, dtype=torch.bool)
        self._hits = self._fetched = self._written = 0

    def run(self) -> Traffic:
        begin = 0
        for count in self._steps:
            self._step(slice(begin, begin + count))
            begin += count
        self._written += int(self._dirty.sum())
        return Traffic(len(self._lines), self._hits, self._fetched, self._written)

    def _step(self, now: slice) -> None:
        """One access of each of the first sets."""
        line, worth, kind = self._lines[now], self._worths[now], self._kinds[now]
        tags, kept, dirty = (x[: len(line)] for x in (self._tags, self._worth, self._dirty))
        same = tags == line[:, None]
        hit = same.any(1)
        way = torch.where(hit, same.to(torch.uint8).argmax(1), kept.argmin(1))[:, None]
        stays = hit | (worth > kept.gather(1, way)[:, 0])
        was_dirty = dirty.gather(1, way)[:, 0]
        writes = kind != LOAD
        self._hits += int(hit.sum())
        self._fetched += int((~hit & (kind != STORE)).sum())
        self._written += int((~hit & stays & was_dirty).sum()) + int((~stays & writes).sum())
        tags.scatter_(1, way, torch.where(stays, line, tags.gather(1, way)[:, 0])[:, None])
        kept.scatter_(1, way, torch.where(stays, worth, kept.gather(1, way)[:, 0])[:, None])
        left = torch.where(stays, writes | (hit & was_dirty), was_dirty)
        dirty.scatter_(1, way, left[:, None])


def _by_step(sets: Tensor) -> tuple[int, list[int], Tensor]:
    """How many sets are touched, the number of accesses of each step, and all accesses in the order
    of steps; within one, sets with many accesses come first."""
    order, which, counts = _groups(sets)
    step = torch.arange(len(sets)) - (counts.cumsum(0) - counts)[which]
    rank = torch.empty_like(counts)
    rank[torch.sort(counts, descending=True, stable=True).indices] = torch.arange(len(counts))
    by_step = torch.sort(step * max(1, len(counts)) + rank[which]).indices
    return len(counts), torch.bincount(step).tolist(), order[by_step]
