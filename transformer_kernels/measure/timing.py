# SPDX-License-Identifier: MIT
"""Timers: the wall clock on a CPU, CUDA graphs or CUDA events on a GPU.

A timer makes a stopwatch of calls (one per set of tensors). `interleave` starts all stopwatches of
a problem in rotation, so that a drift of the clocks or of the machine's load affects all of them
alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from transformer_kernels.measure.statistics import Summary, quantile, summarise

Call = Callable[[], Any]

MIN_ROUNDS = 9
MAX_ROUNDS = 41
_WARM_UP_CALLS = 3
_HEAD_START_CYCLES = 1_000_000


class Stopwatch(Protocol):
    def start(self) -> None:
        """Runs one sample; on a GPU, only enqueues it."""

    def microseconds(self) -> float:
        """The time of one call in the last sample; waits for the sample to end."""


class Timer(Protocol):
    name: str

    def stopwatch(self, calls: Sequence[Call]) -> Stopwatch: ...

    def begin_round(self) -> None: ...


class _WallStopwatch:
    """Times samples by the wall clock; a sample repeats the call for at least two milliseconds."""

    _MIN_SAMPLE_S = 2e-3
    _MAX_REPEATS = 200
    _TRIALS = 3  # a single trial that another process delayed would make samples too short

    def __init__(self, calls: Sequence[Call]) -> None:
        self._call = calls[0]
        self._call()
        once = min(self._once() for _ in range(self._TRIALS))
        self._repeats = max(1, min(self._MAX_REPEATS, math.ceil(self._MIN_SAMPLE_S / once)))
        self._elapsed = 0.0

    def _once(self) -> float:
        begin = time.perf_counter()
        self._call()
        return time.perf_counter() - begin

    def start(self) -> None:
        call = self._call
        begin = time.perf_counter()
        for _ in range(self._repeats):
            call()
        self._elapsed = time.perf_counter() - begin

    def microseconds(self) -> float:
        return self._elapsed * 1e6 / self._repeats


class WallTimer:
    name = "wall clock"

    def stopwatch(self, calls: Sequence[Call]) -> Stopwatch:
        return _WallStopwatch(calls)

    def begin_round(self) -> None:
        pass


@contextmanager
def _whole_generator() -> Iterator[None]:
    """Restores PyTorch's generator when a capture fails: it would stay in capture mode, and each
    later draw would raise."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(before)
        raise


class _GraphStopwatch:
    """Times a CUDA graph with one node per call."""

    def __init__(self, calls: Sequence[Call], pool: Any) -> None:
        self._calls = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        with _whole_generator(), torch.cuda.graph(self._graph, pool=pool):
            # The results are held while capturing, so that every call writes its own memory, and
            # are returned to the pool afterwards, for the graphs of the other providers.
            outputs = [call() for call in calls]
        del outputs
        self.pool = self._graph.pool()
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        self._begin.record()
        self._graph.replay()
        self._end.record()

    def microseconds(self) -> float:
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3 / self._calls


class _EventStopwatch:
    """Times a pair of events around every call; a sample is their median."""

    def __init__(self, calls: Sequence[Call]) -> None:
        def event() -> torch.cuda.Event:
            return torch.cuda.Event(enable_timing=True)

        self._timed = [(call, event(), event()) for call in calls]

    def start(self) -> None:
        for call, begin, end in self._timed:
            begin.record()
            call()
            end.record()

    def microseconds(self) -> float:
        self._timed[-1][2].synchronize()
        times = sorted(begin.elapsed_time(end) for _, begin, end in self._timed)
        return quantile(times, 0.5) * 1e3


class _CudaTimer:
    def __init__(self, head_start_cycles: int = _HEAD_START_CYCLES) -> None:
        self._head_start_cycles = head_start_cycles

    def begin_round(self) -> None:
        # The device stays busy while the host enqueues, so that no launch latency lies between
        # events.
        torch.cuda._sleep(self._head_start_cycles)

    def _warm_up(self, calls: Sequence[Call]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in [calls[0]] * _WARM_UP_CALLS + list(calls):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()


class GraphTimer(_CudaTimer):
    """A timer that replays CUDA graphs. Its graphs share their memory: use one timer per
    problem."""

    name = "CUDA graph"

    def __init__(self) -> None:
        super().__init__()
        self._pool: Any = None

    def stopwatch(self, calls: Sequence[Call]) -> Stopwatch:
        self._warm_up(calls)
        watch = _GraphStopwatch(calls, self._pool)
        self._pool = watch.pool
        return watch


class EventTimer(_CudaTimer):
    name = "CUDA events"

    def stopwatch(self, calls: Sequence[Call]) -> Stopwatch:
        self._warm_up(calls)
        return _EventStopwatch(calls)


def make_timer(device: torch.device, kind: str) -> Timer:
    if device.type != "cuda":
        return WallTimer()
    return EventTimer() if kind == "events" else GraphTimer()


def interleave(
    watches: Mapping[str, Stopwatch], timer: Timer, seconds: float, rounds: int | None = None
) -> dict[str, Summary]:
    """Samples all stopwatches in rotation, `rounds` times, or else for about `seconds` and at least
    nine times each."""
    names = list(watches)
    samples: dict[str, list[float]] = {name: [] for name in names}
    begin = time.perf_counter()
    _sample_round(watches, timer, names)
    once = time.perf_counter() - begin
    rounds = rounds or max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds / max(once, 1e-6))))
    for i in range(rounds):
        rotated = names[i % len(names) :] + names[: i % len(names)]
        for name, microseconds in _sample_round(watches, timer, rotated).items():
            samples[name].append(microseconds)
    return {name: summarise(values) for name, values in samples.items()}


def _sample_round(
    watches: Mapping[str, Stopwatch], timer: Timer, order: Sequence[str]
) -> dict[str, float]:
    timer.begin_round()
    for name in order:
        watches[name].start()
    return {name: watches[name].microseconds() for name in order}
