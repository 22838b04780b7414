# SPDX-License-Identifier: MIT
"""Times a call with the timers and the statistics of ``transformer-kernels bench``.

All times are microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .._errors import ArgumentValueError, as_number
from ..measure import ceilings, cold, machine
from ..measure.statistics import Summary, quantile
from ..measure.timing import Call, GraphTimer, Stopwatch, Timer, interleave, make_timer
from . import work
from ._arguments import Inputs, as_call, as_inputs, as_seconds, at_least, device_of, one_of
from ._report import Report, microseconds, number, percent, table

TIMERS = ("graph", "events")
_TIMED = "timed: "  # precedes the functions' names, which stand beside those of copies
_STEADY = 0.95  # a call is warm when the last group took at least this share of the one before
_GROUP = 3
_WARM_UP_CALLS = 60
_WARM_UP_SECONDS = 2.0
_SAMPLE_SECONDS = 0.05  # about the duration of a sample


@dataclass(frozen=True)
class Timing(Report):
    """The time of one call."""

    name: str
    mean_time: float
    median: float
    p10: float
    p90: float
    samples: int
    warmup: int  # calls before the first sample
    timer: str
    cold: bool  # on a GPU: the tensors of all timed calls together exceed the cache
    bytes: int | None = None
    flops: float | None = None
    copy_us: float | None = None  # time of a copy of as many bytes, in the same rotation

    @property
    def spread(self) -> float:
        """Half the distance between the 10th and the 90th percentile, as a share of the median."""
        return (self.p90 - self.p10) / 2 / self.median

    @property
    def gbps(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.median / 1e3

    @property
    def of_copy(self) -> float | None:
        """The bandwidth of the call, as a share of the copy's."""
        return None if self.copy_us is None else self.copy_us / self.median

    @property
    def tflops(self) -> float | None:
        return None if self.flops is None else self.flops / self.median / 1e6

    def __getitem__(self, name: str) -> Any:
        """A figure by its name in :meth:`as_dict`."""
        return self.as_dict()[name]

    def as_dict(self) -> dict[str, Any]:
        names = ("spread", "gbps", "of_copy", "tflops")
        derived = {name: getattr(self, name) for name in names}
        return {**asdict(self), **derived}

    def records(self) -> list[dict[str, Any]]:
        return [self.as_dict()]

    def scalars(self) -> dict[str, float]:
        return {f"{self.name}/median_us": self.median, f"{self.name}/mean_us": self.mean_time}

    def text(self) -> str:
        headings = [("Call", 20), ("median", 8), ("mean", 8), ("spread", 7), ("GB/s", 7),
                    ("of a copy", 9), ("TFLOP/s", 7)]  # fmt: skip
        body = [
            self.name, microseconds(self.median), microseconds(self.mean_time),
            f"±{percent(self.spread)}", number(self.gbps), percent(self.of_copy),
            number(self.tflops, ".3f"),
        ]  # fmt: skip
        subtitle = f"us; {self.samples} samples by {self.timer}, {self.warmup} calls before"
        return table("TIME OF ONE CALL", subtitle, headings, [body])


def quick_benchmark(
    function: Callable[..., Any],
    *inputs: Any,
    seconds: float = 0.5,
    timer: str = "events",
    device: Any = None,
) -> Timing:
    """Times ``function(*inputs)`` with default settings.

    The warm-up ends when calls get no faster. On a GPU a pair of events around each call is timed,
    which includes gaps in which the GPU waits for the host; on a CPU the wall clock is read.

    Args:
        function: the function to time, in the caller's modes (gradients, autocast).
        inputs: its arguments.
        seconds: duration of sampling, approximately; at least nine samples are taken.
        timer: on a GPU, ``"events"`` or ``"graph"``, as for :func:`benchmark_kernel`.
        device: where the function runs; by default the device of the first tensor among the inputs.

    >>> timing = tfk.profile.quick_benchmark(torch.softmax, torch.randn(64, 256), -1, seconds=0.01)
    >>> timing.median > 0  # microseconds
    True
    """
    who = "quick_benchmark"
    as_call(who, "function", function)
    where = device_of(who, inputs, device)
    return _benchmark(who, function, (inputs, {}), where, None, None, seconds, timer)


def benchmark_kernel(
    function: Callable[..., Any],
    inputs: Any,
    warmup: int | None = None,
    repeat: int | None = None,
    *,
    seconds: float = 0.5,
    timer: str = "graph",
    device: Any = None,
    bytes: int | None = None,  # noqa: A002
    flops: float | None = None,
) -> Timing:
    """Times a kernel as ``transformer-kernels bench`` does.

    On a GPU the calls rotate over copies of the inputs that together exceed the cache, and are
    replayed as a CUDA graph, so that the time holds none of the host's. They alternate with a copy
    of as many bytes, which gives ``of_copy``.

    Args:
        function: the function to time; a CUDA graph cannot hold one that waits for the GPU.
        inputs: a tensor, a sequence of arguments, or a dict of them by name.
        warmup: calls before the first sample; by default until they get no faster.
        repeat: number of samples; by default as many as fit in ``seconds``, 9 to 41.
        seconds: duration of sampling.
        timer: on a GPU, ``"graph"`` or ``"events"``.
        device: where the function runs; by default the device of the first tensor among the inputs.
        bytes: bytes that a call moves at least, for ``gbps``; derived for calls of our ops alone.
        flops: operations of a call, for ``tflops``; derived for our attention.

    >>> x = torch.randn(64, 256)
    >>> timing = tfk.profile.benchmark_kernel(torch.softmax, (x, -1), warmup=1, repeat=3)
    >>> timing.samples
    3
    """
    who = "benchmark_kernel"
    as_call(who, "function", function)
    given = as_inputs(who, inputs)
    where = device_of(who, given, device)
    moved = None if bytes is None else at_least(who, "bytes", bytes, 0)
    computed = None if flops is None else float(as_number(who, "flops", flops))
    if moved is None and computed is None:
        moved, computed = _work(function, given)
    return _benchmark(
        who, function, given, where, warmup, repeat, seconds, timer, moved, computed, True
    )


def measure(
    who: str,
    functions: Mapping[str, Callable[..., Any]],
    inputs: Inputs,
    device: torch.device,
    warmup: int | None,
    repeat: int | None,
    seconds: float,
    timer: str,
    moved: int | None = None,
    flops: float | None = None,
    as_bench: bool = False,
) -> dict[str, Timing]:
    """The timings of functions of the same inputs, sampled in rotation.

    As in the benchmark, the calls of a sample go over several sets of tensors, and a copy of as
    many bytes is in the rotation, which leaves the caches in the same state for each function.
    """
    rounds = None if repeat is None else at_least(who, "repeat", repeat, 1)
    before = None if warmup is None else at_least(who, "warmup", warmup, 0)
    budget = as_seconds(who, "seconds", seconds)
    chosen = make_timer(device, one_of(who, "timer", timer, TIMERS))
    touched = sum(x.nbytes for x in tree_leaves(inputs) if isinstance(x, Tensor)) or 1
    largest = max(touched, moved or 0)
    room = int(cold.MEMORY_SHARE * machine.free_memory_bytes(device)) // (2 * largest)
    wanted = min(cold.sets_of(largest, device), room) if as_bench else 1
    sets = [inputs, *(copied(inputs) for _ in range(wanted - 1))]
    watches: dict[str, Stopwatch] = {}
    warmups: dict[str, int] = {}
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for name, function in functions.items():
            calls: list[Call] = [partial(function, *given, **named) for given, named in sets]
            times = warm_up(calls[0], device, before)
            warmups[name] = len(times)
            if as_bench:
                calls = cold.cycle(calls, largest, flops or 0, device)
                calls = calls[: max(1, int(_SAMPLE_SECONDS / min(times, default=1e-9)))]
            watches[_TIMED + name] = _watch(who, name, chosen, calls)
        if as_bench and room:
            for name, copies in ceilings.copy_calls(moved or touched, len(sets), device).items():
                watches[name] = chosen.stopwatch(cold.cycle(copies, largest, 0, device))
        found = interleave(watches, chosen, budget, rounds)
    copy_us = [timed.median for name, timed in found.items() if not name.startswith(_TIMED)]
    is_cold = as_bench and cold.is_cold(largest, len(sets), device)
    return {
        name: _timing(
            name, found[_TIMED + name], warmups[name], chosen.name, is_cold, moved, flops,
            min(copy_us) if copy_us and moved else None,
        )
        for name in functions
    }  # fmt: skip


def _watch(who: str, name: str, timer: Timer, calls: Sequence[Call]) -> Stopwatch:
    try:
        return timer.stopwatch(calls)
    except RuntimeError as error:
        if timer.name != GraphTimer.name:
            raise
        raise ArgumentValueError(
            f"{who}: timer is 'graph', expected 'events', since {name} cannot be captured"
        ) from error


def warm_up(call: Call, device: torch.device, calls: int | None = None) -> list[float]:
    """Makes this many calls, or calls until they get no faster; returns the seconds of each."""
    limit = _WARM_UP_CALLS if calls is None else calls
    begin = time.perf_counter()
    times: list[float] = []
    while len(times) < limit:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        end = time.perf_counter()
        times.append(end - start)
        if calls is None and (_is_steady(times) or end - begin > _WARM_UP_SECONDS):
            break
    return times


def _is_steady(times: Sequence[float]) -> bool:
    if len(times) < 2 * _GROUP:
        return False
    last, before = sorted(times[-_GROUP:]), sorted(times[-2 * _GROUP : -_GROUP])
    return quantile(last, 0.5) >= _STEADY * quantile(before, 0.5)


def _benchmark(
    who: str, function: Callable[..., Any], inputs: Inputs, device: torch.device,
    warmup: int | None, repeat: int | None, seconds: float, timer: str, *work: Any,
) -> Timing:  # fmt: skip
    name = getattr(function, "__name__", type(function).__name__)
    functions = {name: function}
    return measure(who, functions, inputs, device, warmup, repeat, seconds, timer, *work)[name]


def _timing(
    name: str, summary: Summary, warmup: int, timer: str, is_cold: bool,
    moved: int | None, flops: float | None, copy_us: float | None,
) -> Timing:  # fmt: skip
    return Timing(
        name, summary.mean, summary.median, summary.p10, summary.p90, summary.samples, warmup,
        timer, is_cold, moved, flops, copy_us,
    )  # fmt: skip


def copied(inputs: Inputs) -> Inputs:
    """A copy of the inputs with memory of its own."""

    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.detach().clone().requires_grad_(x.requires_grad)

    given, named = tree_map(copy, inputs)
    return given, named


def _work(function: Callable[..., Any], inputs: Inputs) -> tuple[int | None, float | None]:
    """Bytes and operations of a call that runs only our ops; other kernels may do unknown work."""
    given, named = inputs
    with work.Counting() as counted:
        function(*given, **named)
    if not counted.names or counted.others:
        return None, None
    return counted.bytes, counted.flops or None
