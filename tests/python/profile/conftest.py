# SPDX-License-Identifier: MIT
"""A trace of a GPU, written by hand in the profiler's format."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from transformer_kernels.profile.trace import Trace

MakeTrace = Callable[..., Trace]
_HOST = {"pid": 1, "tid": 1}


def _operator(name: str, number: int, start: float, duration: float, dims, types) -> dict:
    texts = ["" if t != "Scalar" else "1.0" for t in types]
    given = {"External id": number, "Input Dims": dims, "Input type": types}
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": duration, **_HOST,
        "args": {**given, "Concrete Inputs": texts},
    }  # fmt: skip


def _mark(name: str, start: float) -> dict:
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": 1.0, **_HOST,
        "args": {"External id": int(start) + 1000},
    }  # fmt: skip


def _launch(correlation: int, start: float, name: str = "cudaLaunchKernel") -> dict:
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "ts": start, "dur": 6.0, **_HOST,
        "args": {"correlation": correlation},
    }  # fmt: skip


def _kernel(name: str, correlation: int, number: int, start: float, duration: float) -> dict:
    occupancy = {1: 50, 2: 25, 3: 100}.get(correlation, 0)
    return {
        "ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration, "pid": 0, "tid": 7,
        "args": {
            "External id": number, "correlation": correlation, "grid": [8, 2, 1],
            "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024,
            "est. achieved occupancy %": occupancy,
        },
    }  # fmt: skip


def _allocation(start: float, size: int, address: int, allocated: int, reserved: int) -> dict:
    return {
        "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": start, **_HOST,
        "args": {
            "Bytes": size, "Addr": address, "Device Type": 1, "Device Id": 0,
            "Total Allocated": allocated, "Total Reserved": reserved,
        },
    }  # fmt: skip


@pytest.fixture
def gpu_trace() -> Trace:
    """Two steps in a window from 10 to 210: our softmax launches one kernel, one call of mm
    launches two, and there is a copy."""
    softmax, mm = "transformer_kernels::softmax_forward", "aten::mm"
    types = ["float", "", "Scalar", "Scalar", "Scalar"]
    events = [
        _mark("tfk: begin", 9.0),
        _operator("aten::softmax", 2, 15.0, 40.0, [[4, 8]], ["float"]),
        _operator(softmax, 3, 20.0, 30.0, [[4, 8], [], [], [], []], types),
        _launch(1, 30.0),
        _kernel("void tfk::(anonymous namespace)::rows<float, 8>(int)", 1, 3, 40.0, 20.0),
        _operator(mm, 4, 60.0, 20.0, [[4, 8], [8, 4]], ["float", "float"]),
        _launch(2, 64.0, "cudaGraphLaunch"),
        _kernel("gemm", 2, 4, 80.0, 30.0),
        _kernel("gemm", 2, 4, 110.0, 10.0),
        _mark("tfk: step", 120.0),
        {**_kernel("Memcpy DtoH", 4, 4, 150.0, 10.0), "cat": "gpu_memcpy"},
        _mark("tfk: step", 200.0),
        _mark("tfk: end", 210.0),
        _allocation(25.0, 4096, 16, 5000, 10000),
        _allocation(65.0, 2048, 32, 7048, 10000),
        _allocation(70.0, -4096, 16, 2952, 10000),
    ]
    return Trace(json.dumps({"traceEvents": events}))
