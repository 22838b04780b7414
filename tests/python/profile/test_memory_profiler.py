# SPDX-License-Identifier: MIT
"""``MemoryProfiler``: exact peaks, owners of memory, leaks, and caches that look like leaks."""

from __future__ import annotations

import json
from collections import deque

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.profile import memory

GPU = torch.device("cuda")


def _over_steps(step, steps: int = 6, warmup: int = 1) -> memory.MemoryReport:
    with tfk.profile.MemoryProfiler("cpu", warmup=warmup) as profiler:
        for i in range(steps):
            step(i)
            profiler.step()
    return profiler.report


def test_the_peak_is_right_to_the_byte():
    kept = []
    with tfk.profile.MemoryProfiler("cpu") as profiler:
        first = torch.zeros(1000)
        second = torch.ones(500, dtype=torch.float64)
        del first
        kept.append(torch.full((200,), 2, dtype=torch.int8))
        del second
    report = profiler.report
    assert report.peak_bytes == 4000 + 4000
    assert report.end_bytes == 200
    assert report.allocations == 3
    assert report.allocated_bytes == 8200
    assert [point.bytes for point in report.timeline] == [4000, 8000, 4000, 4200, 200]
    assert {row.op: row.at_peak for row in report.rows} == {"zeros": 4000, "ones": 4000, "full": 0}
    times = [point.time_us for point in report.timeline]
    assert times == sorted(times)
    assert times[0] >= 0


def test_the_peak_of_an_op_is_its_result():
    x = torch.randn(64, 32)
    with torch.no_grad(), tfk.profile.MemoryProfiler("cpu") as profiler:
        y = tfk.functional.softmax(x, -1)
    assert profiler.report.peak_bytes == y.nbytes
    assert profiler.report.rows[0].op == "softmax_forward"


def test_what_was_there_before_does_not_count():
    before = torch.zeros(1000)
    with tfk.profile.MemoryProfiler("cpu") as profiler:
        before.zero_()
    assert (profiler.report.peak_bytes, profiler.report.timeline) == (0, [])


def test_a_leak_is_found_with_its_operator_and_its_size():
    kept: list[torch.Tensor] = []
    x = torch.randn(10, 10)

    def step(_):
        y = x.exp()
        kept.append(y.cos())

    report = _over_steps(step)
    (leak,) = report.leaks
    assert (leak.op, leak.bytes_per_step, leak.bytes, leak.steps) == ("cos", 400, 1600, 4)
    assert report.step_bytes == [400, 800, 1200, 1600, 2000, 2400]
    assert "leak: cos leaves 400 bytes a step" in report.text()
    assert report.scalars()["memory/leaked_bytes_per_step"] == 400


def test_a_leak_of_now_and_then_is_found():
    kept: list[torch.Tensor] = []
    x = torch.randn(100)
    (leak,) = _over_steps(lambda i: kept.append(x.exp()) if i % 2 else None, steps=9).leaks
    assert (leak.op, leak.steps, leak.bytes_per_step) == ("exp", 3, pytest.approx(3 * 400 / 7))


def test_a_step_of_training_does_not_leak():
    model = nn.Sequential(nn.Linear(8, 8), tfk.nn.LayerNorm(8), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 8)

    def step(_):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    report = _over_steps(step)
    assert report.leaks == []
    assert report.end_bytes > 0  # the optimizer's state
    assert len(set(report.step_bytes)) == 1
    assert "no leak in 6 steps" in report.text()


def test_what_stays_is_no_leak_where_it_does_not_grow():
    x = torch.randn(100)
    last: list[torch.Tensor] = []
    window: deque[torch.Tensor] = deque(maxlen=2)
    cache: dict[int, torch.Tensor] = {}

    def step(i):
        last[:] = [x.exp()]
        window.append(x.cos())
        if i == 3:
            cache[i] = x.sin()

    assert _over_steps(step, steps=8, warmup=2).leaks == []


def test_the_first_steps_are_left_out():
    kept: list[torch.Tensor] = []
    x = torch.randn(100)

    def step(i):
        if i < 4:
            kept.append(x.exp())

    assert [leak.op for leak in _over_steps(step, steps=8).leaks] == ["exp"]
    kept.clear()
    assert _over_steps(step, steps=8, warmup=4).leaks == []


def test_a_gpus_fragmentation_and_memory_by_operator(gpu_trace, monkeypatch):
    monkeypatch.setattr(memory.machine, "device_name", lambda _: "H200")
    report = memory.report_of(gpu_trace, GPU)
    assert report.peak_bytes == 4096 + 2048
    assert report.end_bytes == 2048
    assert report.fragmentation == pytest.approx(1 - 7048 / 10000)
    assert [(row.op, row.at_peak) for row in report.rows] == [
        ("softmax_forward", 4096), ("mm", 2048),
    ]  # fmt: skip
    assert report.timeline[0].reserved == 10000
    assert report.step_bytes == [2048, 2048]
    assert "29.5 % of the reserved memory held no tensor" in report.text()
    assert report.scalars()["memory/fragmentation"] == pytest.approx(0.2952)
    assert memory.report_of(gpu_trace, torch.device("cpu")).allocations == 0


def test_a_report_is_records_and_a_dict():
    with tfk.profile.MemoryProfiler("cpu") as profiler:
        x = torch.zeros(100)
    report = profiler.report
    assert report.records() == [{"op": "zeros", "count": 1, "bytes": 400, "at_peak": 400}]
    (point,) = report.timeline_records()
    assert (point["bytes"], point["reserved"]) == (x.nbytes, None)
    assert json.loads(json.dumps(report.as_dict()))["peak_bytes"] == 400
    assert report.fragmentation is None
    assert "fragmentation" not in report.text()


def test_a_warm_up_below_nothing_is_refused():
    with pytest.raises(ValueError, match="MemoryProfiler: warmup is -1, expected at least 0"):
        tfk.profile.MemoryProfiler("cpu", warmup=-1)
    with pytest.raises(TypeError, match=r"MemoryProfiler: warmup is 1\.5, expected an int"):
        tfk.profile.MemoryProfiler("cpu", warmup=1.5)


@pytest.mark.cuda
def test_memory_of_a_gpu():
    kept = []
    with tfk.profile.MemoryProfiler() as profiler:
        for _ in range(5):
            kept.append(torch.zeros(1 << 20, device="cuda"))
            profiler.step()
    report = profiler.report
    assert report.peak_bytes == 5 << 22
    assert 0 <= report.fragmentation < 1
    (leak,) = report.leaks
    assert leak.bytes_per_step == 1 << 22
