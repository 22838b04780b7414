# SPDX-License-Identifier: MIT
"""Measures the card in hand as the model describes it, and keeps what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from .. import _times
from .._errors import ArgumentValueError
from ..functional import linear, softmax
from ..measure.ceilings import copy_calls
from ..measure.machine import free_memory_bytes
from ..measure.timing import Call, GraphTimer, interleave
from .datasheets import sheet_of, without_sheet
from .description import Hardware
from .kept import keep

_SIZES = tuple(1 << power for power in range(18, 31))  # bytes of copies: 256 KiB to 1 GiB
_MEMORY_SHARE = 0.25  # of what is free, for the largest copy
_LEAST_SHOWN = 0.1  # of a copy's time, behind its launch
_SAMPLE_US, _MOST_CALLS = 2000.0, 200  # of a graph
_SECONDS = 0.2  # of samples of a call
_MATRICES = {"bfloat16": 8192, "float16": 8192, "float32": 4096}
_TINY = 16
_HOST_CALLS, _HOST_SAMPLES = 100, 9
_LONGEST = 60  # letters of a reason
_EXPONENTIALS = "exponentials"  # a rate, and a field of its own


@dataclass(frozen=True)
class Found:
    """The numbers that a card gave, and reasons in the place of others.

    Args:
        units: its streaming multiprocessors.
        launch_us: microseconds of an operation on a few numbers in a CUDA graph.
        host_us: microseconds in which the host issues one outside of graphs.
        copies: microseconds of copies in a graph, by the bytes that they read and write.
        products: TFLOP/s by dtype.
        rates: 1e9 a second of other work.
        why_not: reasons, by the names of products and rates that are missing.
    """

    units: int
    launch_us: float
    host_us: float
    copies: Mapping[int, float]
    products: Mapping[str, float]
    rates: Mapping[str, float]
    why_not: Mapping[str, str] = field(default_factory=dict)


def measure_cuda(device: torch.device | str = "cuda") -> Hardware:
    """A card, and the kernels that are installed.

    Copies of sizes from 256 KiB to 1 GiB between the same tensors give its L2 cache and its memory,
    products as :func:`~transformer_kernels.functional.linear` runs them its tensor cores, an
    operation on a few numbers a launch, and a softmax outside of graphs the host's time of a call.
    Small kernels in Triton give the rest: exponentials, multiply-adds of vectors by dtype, random
    numbers, bytes of shared memory written and read, and atomic additions, to places of their own
    and to one. It takes some seconds, and is kept in the user's cache (:func:`kept`).

    What cannot be measured, as where Triton is missing, comes from the card's data sheet if it is a
    number that the model needs, and is left out otherwise; ``origins`` has the reason.

    Raises:
        ArgumentValueError: the device is no card.

    >>> hardware.measure_cuda().origins["copies"]  # doctest: +SKIP
    'measured'
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ArgumentValueError(f"measure_cuda: device is {device}, expected a card")
    with torch.cuda.device(device):
        device = torch.device("cuda", torch.cuda.current_device())
        with torch.no_grad(), torch.random.fork_rng([device]):
            found = _found(device)
        torch.cuda.empty_cache()
    machine = described(_times.machine_of(device), found)
    keep(machine)
    return machine


# ---- what is known of it ------------------------------------------------------------------------


def described(name: str, found: Found) -> Hardware:
    """The card as the model sees it. What was not measured is its data sheet's."""
    sheet = sheet_of(name) or without_sheet(name, found.units)
    copies = {size: _gbps(size, us, found.launch_us) for size, us in found.copies.items()}
    rates = dict(found.rates)
    exponentials = rates.pop(_EXPONENTIALS, sheet.exponentials)
    others = [rate for rate in found.why_not if rate not in (*_MATRICES, _EXPONENTIALS)]
    origins = dict.fromkeys(("copy_gbps", "units", "launch_us", "copies", "host_us"), "measured")
    origins["products"] = _origin(found, _MATRICES, sheet)
    origins["rates"] = _origin(found, others, sheet)
    origins["exponentials"] = (
        f"{sheet.origins[_EXPONENTIALS]}: {found.why_not[_EXPONENTIALS]}"
        if _EXPONENTIALS in found.why_not
        else "measured"
    )
    return Hardware(
        name=name,
        copy_gbps=copies[max(copies)],
        products={**sheet.products, **found.products},
        exponentials=exponentials,
        units=found.units,
        launch_us=found.launch_us,
        copies=copies,
        rates=rates,
        host_us=found.host_us,
        origins=origins,
    )


def _origin(found: Found, names: Iterable[str], sheet: Hardware) -> str:
    """Where numbers of these names come from, and why not all are measured."""
    words = ["measured"]
    for name in (name for name in names if name in found.why_not):
        instead = sheet.origins["products"] if name in sheet.products else "left out"
        words.append(f"{name} {instead}: {found.why_not[name]}")
    return "; ".join(words)


def _gbps(size: int, us: float, launch_us: float) -> float:
    """The bandwidth of a copy behind its launch, which the model adds."""
    return size / max(us - launch_us, _LEAST_SHOWN * us) / 1e3


# ---- what it does -------------------------------------------------------------------------------


def _found(device: torch.device) -> Found:
    units = torch.cuda.get_device_properties(device).multi_processor_count
    tiny = torch.zeros(_TINY, device=device)
    launch_us = _least_us({"launch": partial(torch.neg, tiny, out=tiny)})
    why_not: dict[str, str] = {}
    return Found(
        units=units,
        launch_us=launch_us,
        host_us=_host_us(device),
        copies={size: _copy_us(size, device) for size in _sizes(device)},
        products=_tried({d: partial(_tflops, d, device) for d in _MATRICES}, why_not),
        rates=_rates(units, why_not),
        why_not=why_not,
    )


def _tried(probes: Mapping[str, Callable[[], float]], why_not: dict[str, str]) -> dict[str, float]:
    """Runs the probes; one that fails adds its reason to ``why_not``."""
    found = {name: _result(probe) for name, probe in probes.items()}
    why_not |= {name: reason for name, reason in found.items() if isinstance(reason, str)}
    return {name: rate for name, rate in found.items() if isinstance(rate, float)}


def _result(probe: Callable[[], float]) -> float | str:
    try:
        return probe()
    except Exception as error:  # a compiler raises what it likes, and none may end the rest
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0][:_LONGEST]


def _rates(units: int, why_not: dict[str, str]) -> dict[str, float]:
    try:
        from .probes_triton import PROBES
    except ImportError:
        why_not |= dict.fromkeys((_EXPONENTIALS, "rates"), "Triton is not installed")
        return {}

    def rate(name: str) -> float:
        probe = PROBES[name](units)
        return probe.amount / _least_us({name: probe.call}) / 1e3

    return _tried({name: partial(rate, name) for name in PROBES}, why_not)


def _sizes(device: torch.device) -> list[int]:
    room = _MEMORY_SHARE * free_memory_bytes(device)
    return [size for size in _SIZES if size <= max(room, _SIZES[0])]


def _copy_us(size: int, device: torch.device) -> float:
    return _least_us({name: calls[0] for name, calls in copy_calls(size, 1, device).items()})


def _tflops(dtype: str, device: torch.device) -> float:
    size = _MATRICES[dtype]
    x, weight = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return 2 * size**3 / _least_us({dtype: partial(linear, x, weight)}) / 1e6


def _least_us(calls: Mapping[str, Call]) -> float:
    """The median microseconds of the fastest of several calls, in CUDA graphs that repeat them on
    the same memory."""
    timer = GraphTimer()
    watches = {name: timer.stopwatch([call] * _repeats(call)) for name, call in calls.items()}
    found = interleave(watches, timer, _SECONDS)
    return min(summary.median for summary in found.values())


def _repeats(call: Call) -> int:
    """How many calls take as long as a sample should, by the second one."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    once = float(begin.elapsed_time(end)) * 1e3
    return max(1, min(_MOST_CALLS, int(_SAMPLE_US / once)))


def _host_us(device: torch.device) -> float:
    """The host's microseconds of a call of ours that the card runs in less."""
    x = torch.zeros(1, _TINY, device=device)
    softmax(x, -1)
    least = float("inf")
    for _ in range(_HOST_SAMPLES):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(_HOST_CALLS):
            softmax(x, -1)
        least = min(least, time.perf_counter() - begin)
    return 1e6 * least / _HOST_CALLS
