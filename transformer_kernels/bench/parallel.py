# SPDX-License-Identifier: MIT
"""The clock and the table of `benchmarks/parallel.py`: several devices beside one, and beside
PyTorch's ways."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from transformer_kernels._cuda_graph import Tape
from transformer_kernels.measure.schema import ParallelRow, Result
from transformer_kernels.measure.table import ABSENT, Table

# ---- time ---------------------------------------------------------------------------------------


Span = tuple[float, float]  # begin and end


class Times(NamedTuple):
    """Milliseconds of a call."""

    median: float
    p10: float
    p90: float
    samples: int


class Clock:
    """Times calls that all ranks make together.

    Args:
        device: of this rank.
        seconds: the time that a call may be measured for.
        most: the most samples of it.
    """

    def __init__(self, device: torch.device, seconds: float, most: int) -> None:
        self._device, self._seconds, self._most = device, seconds, most

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _sample(self, call: Callable[[], Any], repeats: int) -> float:
        self._finish()
        dist.barrier()
        self._finish()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        self._finish()
        return (time.perf_counter() - begin) * 1e3 / repeats

    def _over_ranks(self, times: Sequence[float], by: Any) -> list[float]:
        found = torch.tensor(times, dtype=torch.float64, device=self._device)
        dist.all_reduce(found, by)
        slowest: list[float] = found.tolist()
        return slowest

    def __call__(self, call: Callable[[], Any], *, repeats: int = 1, alone: bool = False) -> Times:
        """Times samples of so many calls each; ``alone`` where no rank needs another."""
        by = dist.ReduceOp.MIN if alone else dist.ReduceOp.MAX
        call()
        once = self._over_ranks([self._sample(call, repeats)], dist.ReduceOp.MAX)[0]
        samples = max(2, min(self._most, int(self._seconds * 1e3 / (once * repeats))))
        times = self._over_ranks([self._sample(call, repeats) for _ in range(samples)], by)
        cuts = statistics.quantiles(times, n=10, method="inclusive")
        return Times(cuts[4], cuts[0], cuts[8], samples)


def replayed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The kernels of a call as a CUDA graph, without the time of the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    tape = Tape(side.device, None, side)  # the threads of NCCL may ask for its events meanwhile
    tape.record(call)
    return tape.replay


def hidden(call: Callable[[], Any]) -> float | None:
    """The share of the time of NCCL's kernels in which this rank's other kernels ran, in a trace of
    one call. A receiver's kernel also waits for its sender."""
    if not torch.cuda.is_available():
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        call()
        torch.cuda.synchronize()
    sent, computed = [], []
    for event in profiler.events() or ():
        span = (event.time_range.start, event.time_range.end)
        if event.device_type.name != "CUDA":
            continue
        if event.name.startswith(("ncclDev", "ncclKernel")):
            sent.append(span)
        elif not event.name.startswith("nccl"):  # others are marks of a range
            computed.append(span)
    return covered(sent, computed)


def covered(spans: Sequence[Span], by: Sequence[Span]) -> float | None:
    """The share of the spans' time that lies in spans of the other kind, which may overlap.

    >>> covered([(0, 4)], [(1, 2), (1, 3), (9, 10)])
    0.5
    """
    whole = sum(end - begin for begin, end in spans)
    merged: list[list[float]] = []
    for begin, end in sorted(by):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    found = sum(
        max(0.0, min(end, last) - max(begin, first))
        for begin, end in spans
        for first, last in merged
    )
    return found / whole if whole else None


# ---- the table ----------------------------------------------------------------------------------

_HEADINGS = [
    ("Part", 8), ("problem", 34), ("by", 26), ("ranks", 5), ("median ms", 10), ("p10", 9),
    ("p90", 9), ("of one", 7), ("of torch", 8), ("apart", 8), ("hidden", 6),
]  # fmt: skip


def render(result: Result) -> str:
    """The table, and a line for each way that failed."""
    return "\n".join([
        str(lay_out(result)),
        *(f"{skip.problem}, {skip.provider}: {skip.reason}" for skip in result.skipped),
    ])  # fmt: skip


def lay_out(result: Result) -> Table:
    """A line for each way to do a part's work. "of one" compares with one device by work done,
    "of torch" with PyTorch's way on as many devices."""
    title = f"{result.settings['ranks']} RANKS ({result.machine.device_name})"
    subtitle = f"the slowest rank's times, {result.settings['backend']}"
    return Table(title, subtitle, _HEADINGS, [cells(row) for row in result.parallel])


def cells(row: ParallelRow) -> list[str]:
    """A line of the table."""
    return [
        row.part, row.problem, row.provider, str(row.ranks), f"{row.median_ms:.3f}",
        f"{row.p10_ms:.3f}", f"{row.p90_ms:.3f}", _ratio(row.of_one), _ratio(row.of_torch),
        ABSENT if row.apart is None else f"{row.apart:.1e}",
        ABSENT if row.hidden is None else f"{row.hidden:.0%}",
    ]  # fmt: skip


def _ratio(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{ratio:.2f}x"
