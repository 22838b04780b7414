# SPDX-License-Identifier: MIT
"""`transformer-kernels profilers` measures the profilers' overhead, and compares them with
`bench`."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from transformer_kernels import profile
from transformer_kernels.bench import cases, runner
from transformer_kernels.levels import Block
from transformer_kernels.measure import machine
from transformer_kernels.measure.case import Case, Problem, dtype_name
from transformer_kernels.measure.schema import AgreementRow, ProfilerRow, Result
from transformer_kernels.measure.statistics import quantile
from transformer_kernels.measure.sweeps import Shape, shape_text
from transformer_kernels.measure.table import box, short_dtype

_SHAPE, _HEADS = (1, 32, 64), 4  # a block so small that the host is the bound
_STEPS = 10  # in a window
_PLAIN = "none"
_OPS = ("softmax", "layer_norm", "gelu")
_SHAPES = {"cpu": [(512, 768), (2048, 768)], "cuda": [(8192, 1024), (32768, 4096)]}
_SECONDS = 0.2

Window = AbstractContextManager[Any]


def run(device: torch.device, rounds: int = 15) -> Result:
    return machine.new_result(
        device,
        settings={"rounds": str(rounds), "threads": str(torch.get_num_threads())},
        profilers=_costs(device, rounds),
        agreement=[
            _agreement(cases.all_ops()[name], shape, device, max(1, rounds // 2))
            for name in _OPS
            for shape in _SHAPES[device.type]
        ],
    )


def render(result: Result) -> str:
    name = result.machine.device_name
    headings = [("Profiler", 16), ("launches", 8), ("a step without", 14), ("with", 8),
                ("a launch more", 13), ("a window", 8)]  # fmt: skip
    costs = [
        [
            row.profiler, str(row.launches), f"{row.plain_us:.0f}", f"{row.profiled_us:.0f}",
            f"{row.launch_us:+.2f}", f"{row.window_us:.0f}",
        ]
        for row in result.profilers
    ]  # fmt: skip
    clock = "of the processors, " if result.machine.device == "cpu" else ""
    what = f"forward and backward of a block of {shape_text(_SHAPE)}"
    subtitle = f"microseconds {clock}10th percentile; {what}"
    drawn = box(f"COST OF THE PROFILERS ({name})", subtitle, headings, costs)
    headings = [("Kernel", 31), ("bench", 8), ("profile", 8), ("ratio", 6)]
    agreed = [
        [
            f"{row.op} fwd {short_dtype(row.dtype)} {shape_text(row.shape)}",
            f"{row.bench_us:.1f}", f"{row.profile_us:.1f}", f"{row.ratio:.3f}",
        ]
        for row in result.agreement
    ]  # fmt: skip
    subtitle = "microseconds, the least 10th percentile of runs in turns"
    return "\n".join(
        [drawn, box("THE SAME OP BY BENCH AND BY PROFILE", subtitle, headings, agreed)]
    )


# ---- cost ---------------------------------------------------------------------------------------


def _costs(device: torch.device, rounds: int) -> list[ProfilerRow]:
    torch.manual_seed(0)
    block = Block("ours", _SHAPE[-1], _HEADS, device=device)
    x = torch.randn(*_SHAPE, device=device, requires_grad=True)
    dy = torch.randn(*_SHAPE, device=device)
    wanted = [x, *block.parameters()]

    def step() -> None:
        torch.autograd.grad(block(x), wanted, dy)

    kernels = profile.KernelProfiler(device)
    clock = _clock(device)
    profilers: dict[str, profile.GPUProfiler | profile.KernelProfiler | profile.MemoryProfiler] = {
        "GPUProfiler": profile.GPUProfiler(device),
        "KernelProfiler": kernels,
        "MemoryProfiler": profile.MemoryProfiler(device),
    }
    windows: dict[str, Callable[[], Window]] = {_PLAIN: nullcontext}
    windows |= {name: lambda p=p: p for name, p in profilers.items()}  # type: ignore[misc]
    steps: dict[str, list[float]] = {name: [] for name in windows}
    around: dict[str, list[float]] = {name: [] for name in windows}
    order = random.Random(0)  # random, so that no profiler always follows the same one
    for i in range(rounds + 1):
        for name, window in order.sample(sorted(windows.items()), len(windows)):
            section = profilers["GPUProfiler"] if name == "GPUProfiler" else None
            inside, outside = _window(step, window(), section, device)
            if name in profilers:
                begin = clock()
                profilers[name].report  # noqa: B018
                outside += (clock() - begin) * 1e6
            if i > 0:  # the first window starts services that stay
                steps[name].append(inside / _STEPS)
                around[name].append(outside)
    launches = kernels.report.launches // _STEPS
    plain = _least(steps[_PLAIN])
    return [
        ProfilerRow(name, launches, plain, _least(steps[name]), _least(around[name]))
        for name in profilers
    ]


def _window(
    step: Callable[[], None], window: Window, section: Any, device: torch.device
) -> tuple[float, float]:
    """Microseconds of the steps, and of the profiler's work around them."""
    clock = _clock(device)
    gc.collect()  # garbage of the last report
    step()
    begin = clock()
    with window:
        first = clock()
        for _ in range(_STEPS):
            with nullcontext() if section is None else section.section("step"):
                step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        last = clock()
    end = clock()
    return (last - first) * 1e6, (end - begin - (last - first)) * 1e6


def _least(times: Sequence[float]) -> float:
    """The 10th percentile: load of other programs only adds time."""
    return quantile(sorted(times), 0.1)


def _clock(device: torch.device) -> Callable[[], float]:
    """The clock of the host, which has all of the cost; on a GPU some may hide behind kernels."""
    return time.process_time if device.type == "cpu" else time.perf_counter


# ---- agreement ----------------------------------------------------------------------------------


def _agreement(op: Case, shape: Shape, device: torch.device, rounds: int) -> AgreementRow:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    settings = runner.Settings(
        [op], ["forward"], [dtype], lambda *_: [shape], device, providers=["ours"],
        seconds=_SECONDS, find_kernels=False,
    )  # fmt: skip
    problem = Problem(op.name, "forward", dtype, dtype, shape)
    bench, own = [], []
    with torch.no_grad():
        for _ in range(rounds):
            arguments = op.make(problem, device)  # pages of its own every time, as bench's
            inputs = [arguments[name] for name in op.operands]
            rows = runner.run(settings, quiet=True).rows
            bench.append(next(row.p10_us for row in rows if row.provider == "ours"))
            timing = profile.benchmark_kernel(op.functions["ours"], inputs, seconds=_SECONDS)
            own.append(timing.p10)
    return AgreementRow(
        op=op.name,
        dtype=dtype_name(dtype),
        shape=list(shape),
        bench_us=min(bench),
        profile_us=min(own),
    )
