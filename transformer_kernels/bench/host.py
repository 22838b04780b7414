# SPDX-License-Identifier: MIT
"""Measures host time of one eager call, ours and torch's, on a tensor too small to matter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from transformer_kernels.bench import cases
from transformer_kernels.measure import machine
from transformer_kernels.measure.case import Build, Case, Problem, bind
from transformer_kernels.measure.schema import HostRow, Result
from transformer_kernels.measure.statistics import Summary, summarise
from transformer_kernels.measure.sweeps import Shape, shape_text
from transformer_kernels.measure.table import Table

_CALLS = 100  # fewer kernels than a CUDA stream queues before it blocks the host
_ROUNDS = 25
_PROVIDERS = ("torch", "ours")


@dataclass(frozen=True)
class _Call:
    op: str
    shape: Shape
    grad: bool
    backward: bool = False

    @property
    def name(self) -> str:
        words = " of one row" if self.shape == _ONE_ROW else ""
        return f"{self.op}{words} and its backward pass" if self.backward else f"{self.op}{words}"


_ROWS, _HEADS = (4, 64), (1, 64, 4, 64)
_ONE_ROW = (1, 64, 256)  # features and hidden features
_MEASURED = (
    *(_Call(op, _ROWS, grad) for op in ("softmax", "layer_norm", "rms_norm", "gelu")
      for grad in (False, True)),
    _Call("attention", _HEADS, grad=False),
    _Call("attention", _HEADS, grad=True),
    _Call("attention", _HEADS, grad=True, backward=True),
    *(_Call(op, _ONE_ROW, grad=False) for op in ("linear", "linear_act", "mlp", "gated_mlp")),
)  # fmt: skip


def run(device: torch.device) -> Result:
    rows = [row for call in _MEASURED for row in _measure(call, device)]
    return machine.new_result(device, settings={"calls_per_sample": str(_CALLS)}, host=rows)


def render(result: Result) -> str:
    return str(lay_out(result))


def lay_out(result: Result) -> Table:
    """One line per call: torch, ours and their ratio."""
    by_call: dict[tuple[str, bool], dict[str, HostRow]] = {}
    for row in result.host:
        by_call.setdefault((row.call, row.grad), {})[row.provider] = row
    body = []
    for (call, grad), pair in by_call.items():
        torch_us, ours_us = pair["torch"].median_us, pair["ours"].median_us
        name = f"{call}, {'with' if grad else 'without'} gradient"
        body.append([name, f"{torch_us:.2f}", f"{ours_us:.2f}", f"{ours_us / torch_us:.2f}x"])
    headings = [("Eager call", 46), ("PyTorch", 7), ("Ours", 6), ("ours / PyTorch", 14)]
    subtitle = (
        f"microseconds of host time, median; tensors {shape_text(_ROWS)} and {shape_text(_HEADS)}"
    )
    title = f"HOST COST OF ONE CALL ({result.machine.device_name})"
    return Table(title, subtitle, headings, body)


def _measure(call: _Call, device: torch.device) -> list[HostRow]:
    op = cases.all_ops()[call.op]
    # Ops on tensor cores are timed in bfloat16; here the cost of the call decides.
    dtype = torch.bfloat16 if device.type == "cuda" and op.flops else torch.float32
    problem = Problem(op.name, "forward", dtype, dtype, call.shape)
    with torch.no_grad():
        arguments = op.make(problem, device)
    for name in op.operands:
        arguments[name].requires_grad_(call.grad)
    calls = {name: _build(op, name, call)(arguments) for name in _PROVIDERS}
    with torch.set_grad_enabled(call.grad):
        summaries = _interleave(calls, device)
    return [
        HostRow(call.name, name, call.grad, summary.median, summary.p10, summary.p90)
        for name, summary in summaries.items()
    ]


def _build(op: Case, provider: str, call: _Call) -> Build:
    if call.backward:
        return op.build(provider, "both", lambda function: function)
    return bind(op.functions[provider], *op.operands)


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
