# SPDX-License-Identifier: MIT
"""Checks and times the operators of exercise.cpp: values, gradients, and odd sizes."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import compiled
import torch

ELEMENTS = 1 << 24
SMALL = 100_003


def formula(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def error() -> float:
    """The largest error of value and gradient against double precision; infinite for a NaN."""
    ends = torch.tensor([-1e30, -88.0, -0.0, 88.0, 1e18])
    x = torch.cat([torch.randn(SMALL) * 4, ends])
    dy = torch.ones_like(x)
    exact = x.double().requires_grad_()
    formula(exact).backward(dy.double())
    worst = 0.0
    for found, wanted in (
        (torch.ops.exercise5.quick_gelu(x), formula(exact).detach()),
        (torch.ops.exercise5.quick_gelu_backward(dy, x), exact.grad),
    ):
        off = ((found - wanted).abs() / wanted.abs().clamp(min=1)).nan_to_num(torch.inf)
        worst = max(worst, float(off.max()))
    return worst


def microseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(6):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[1:])


def main(arguments: list[str]) -> int:
    torch.ops.load_library(compiled.library("exercise.cpp"))
    worst = error()
    x = torch.randn(int(arguments[0]) if arguments else ELEMENTS)
    us = microseconds(lambda: torch.ops.exercise5.quick_gelu(x))
    share = 100 * microseconds(x.clone) / us
    rate = 8 * x.numel() / us / 1e3
    print(f"exercise | CPU | {x.numel()} float32 | {us:.1f} us | {rate:.5g} GB/s"
          f" | {share:.1f} % | {worst:.1e}")  # fmt: skip
    if worst <= 1e-5:
        return 0
    print("wrong: the error is above 1e-5")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
