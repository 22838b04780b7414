# SPDX-License-Identifier: MIT
"""Measures the CPU in hand as the model describes it, and keeps what was found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from .. import _times
from ..functional import dropout, linear, softmax
from .description import Hardware
from .kept import keep

_SIZES = tuple(1 << power for power in range(14, 29, 2))  # bytes of copies: 16 KiB to 256 MiB
_ROUNDS, _SECONDS = 20, 0.2  # of each call, whichever is more
_COUNT = 1 << 16  # numbers of a call in the nearest caches
_TINY = 16
_MATRIX = 512
_NEW_BYTES = 64 << 20  # of a result that the allocator asks the system for
_PAGE = 4096


def measure_cpu() -> Hardware:
    """This machine's CPU with PyTorch's number of threads, and the kernels that are installed.

    Copies of sizes from 16 KiB to 256 MiB give its caches and its memory, a product in each dtype
    by our kernel its products, a softmax of a few numbers a launch, and PyTorch's own pointwise
    operations on numbers in the cache the rates of vectors. It takes a few seconds, and is kept in
    the user's cache (:func:`kept`). What other programs take from the machine meanwhile is missing
    in the least times, if they leave it alone for a moment.

    >>> hardware.measure_cpu().origins["copies"]  # doctest: +SKIP
    'measured'
    """
    with torch.no_grad():
        copies = {size: size / _copy_us(size) / 1e3 for size in _SIZES}
        launch_us = _least(partial(softmax, torch.zeros(1, _TINY), -1))
        machine = Hardware(
            name=_times.machine_of(torch.device("cpu")),
            copy_gbps=copies[_SIZES[-1]],
            products={dtype: _tflops(getattr(torch, dtype)) for dtype in ("bfloat16", "float32")},
            exponentials=_rate(torch.exp, launch_us),
            units=torch.get_num_threads(),
            launch_us=launch_us,
            copies=copies,
            rates={
                "operations": _rate(torch.neg, launch_us),
                "converted": _rate(_converted, launch_us),
                "random": _rate(partial(dropout, p=0.5), launch_us),
            },
            page_us=_page_us(),
            origins=dict.fromkeys((field.name for field in fields(Hardware)), "measured"),
        )
    keep(machine)
    return machine


# ---- times --------------------------------------------------------------------------------------


def _least(call: Callable[[], Any]) -> float:
    """The least microseconds of a call."""
    call()
    least, rounds, start = float("inf"), 0, time.perf_counter()
    while rounds < _ROUNDS or time.perf_counter() - start < _SECONDS:
        begin = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - begin)
        rounds += 1
    return 1e6 * least


def _copy_us(size: int) -> float:
    source = torch.ones(size // 2 // torch.float32.itemsize)
    target = torch.empty_like(source)
    return _least(lambda: target.copy_(source))


def _rate(op: Callable[[torch.Tensor], Any], launch_us: float) -> float:
    """1e9 numbers a second, beside the time of a launch."""
    x = torch.rand(_COUNT * torch.get_num_threads())
    us = _least(lambda: op(x))
    return x.numel() / max(us - launch_us, us / 2) / 1e3


def _converted(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16()


def _tflops(dtype: torch.dtype) -> float:
    x, weight = (torch.ones(_MATRIX, _MATRIX, dtype=dtype) for _ in range(2))
    return 2 * _MATRIX**3 / _least(lambda: linear(x, weight, backend="cpu")) / 1e6


def _page_us() -> float:
    """The time that a new page adds to writing it once more."""
    old = torch.empty(_NEW_BYTES, dtype=torch.uint8)
    again = _least(lambda: old.fill_(1))
    new = _least(lambda: torch.empty(_NEW_BYTES, dtype=torch.uint8).fill_(1))
    return max(new - again, 0.0) / (_NEW_BYTES / _PAGE)
