# SPDX-License-Identifier: MIT
"""Host time of one eager call: ours against torch's on a tensor too small to matter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from transformer_kernels.bench import cases, machine
from transformer_kernels.bench.case import Op, bind
from transformer_kernels.bench.schema import HostRow, Result
from transformer_kernels.bench.stats import Summary, summarise
from transformer_kernels.bench.table import box

_SHAPE = (4, 64)
_CALLS = 400  # fewer than a CUDA stream takes before it blocks the host
_ROUNDS = 25
_OPS = ("softmax", "layer_norm", "rms_norm")
_PROVIDERS = ("torch", "ours")


def run(device: torch.device) -> Result:
    ops = [cases.all_ops()[name] for name in _OPS]
    rows = [row for op in ops for grad in (False, True) for row in _measure(op, grad, device)]
    return machine.new_result(device, settings={"calls_per_sample": str(_CALLS)}, host=rows)


def render(result: Result) -> str:
    """One line per call: torch, ours and their ratio."""
    by_call: dict[tuple[str, bool], dict[str, HostRow]] = {}
    for row in result.host:
        by_call.setdefault((row.call, row.grad), {})[row.provider] = row
    body = []
    for (call, grad), pair in by_call.items():
        torch_us, ours_us = pair["torch"].median_us, pair["ours"].median_us
        name = f"{call}, {'with' if grad else 'without'} gradient"
        body.append([name, f"{torch_us:.2f}", f"{ours_us:.2f}", f"{ours_us / torch_us:.2f}x"])
    headings = [("Eager call", 31), ("PyTorch", 7), ("Ours", 6), ("ours / PyTorch", 14)]
    subtitle = f"microseconds of host time, median; tensor {_SHAPE[0]}x{_SHAPE[1]}"
    title = f"HOST COST OF ONE CALL ({result.machine.device_name})"
    return box(title, subtitle, headings, body)


def _measure(op: Op, grad: bool, device: torch.device) -> list[HostRow]:
    size, columns = _SHAPE, _SHAPE[1]
    arguments = {name: torch.randn(size, device=device) for name in op.inputs}
    arguments |= {name: torch.randn(columns, device=device) for name in op.parameters}
    for tensor in arguments.values():
        tensor.requires_grad_(grad)
    calls = {name: bind(op.functions[name], *op.operands)(arguments) for name in _PROVIDERS}
    with torch.set_grad_enabled(grad):
        summaries = _interleave(calls, device)
    return [
        HostRow(op.name, name, grad, summary.median, summary.p10, summary.p90)
        for name, summary in summaries.items()
    ]


def _interleave(calls: dict[str, Callable[[], Any]], device: torch.device) -> dict[str, Summary]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
            samples[name].append((time.perf_counter() - begin) * 1e6 / _CALLS)
            if device.type == "cuda":
                torch.cuda.synchronize()
    return {name: summarise(values[1:]) for name, values in samples.items()}
