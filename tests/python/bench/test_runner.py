# SPDX-License-Identifier: MIT
"""Whole benchmark runs on small problems."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from transformer_kernels.bench import cases, providers, runner
from transformer_kernels.bench.runner import Settings
from transformer_kernels.measure import ceilings, machine, timing

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch):
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._MATMUL_SIZE, "cpu", 64)
    monkeypatch.setattr(ceilings, "_SECONDS", 0.0)


def _settings(ops=("softmax",), passes=("forward",), shapes=((16, 64),), **changes):
    fields = {
        "ops": [cases.all_ops()[name] for name in ops],
        "passes": passes,
        "dtypes": [torch.float32],
        "shapes": lambda *_: list(shapes),
        "device": CPU,
        "providers": ["torch"],
        "seconds": 0.0,
        "find_kernels": False,
    }
    return Settings(**{**fields, **changes})


def test_a_run_measures_the_copy_and_the_providers():
    result = runner.run(_settings(ops=("layer_norm",), passes=("forward", "both")), quiet=True)
    assert result.machine.device == "cpu"
    assert result.ceilings.copy_gbps > 0
    assert result.ceilings.matmul_tflops > 0
    assert [(row.pass_, row.provider) for row in result.rows] == [
        ("forward", "copy"), ("forward", "torch"), ("both", "copy"), ("both", "torch"),
    ]  # fmt: skip
    copy, torch_row = result.rows[:2]
    assert torch_row.p10_us <= torch_row.median_us <= torch_row.p90_us
    assert torch_row.samples >= timing.MIN_ROUNDS
    assert torch_row.bytes == copy.bytes == 4 * (2 * 16 * 64 + 2 * 64)
    assert torch_row.gbps == pytest.approx(torch_row.bytes / torch_row.median_us / 1e3)
    assert torch_row.pct_copy == pytest.approx(100 * copy.median_us / torch_row.median_us)
    assert 0 < torch_row.error < 1e-5
    assert (copy.outputs, torch_row.outputs) == ("reused", "fresh")


def test_fresh_and_reused_outputs_are_told_apart():
    settings = _settings(passes=("forward", "backward"), outputs=("fresh", "reused"))
    result = runner.run(settings, quiet=True)
    outputs = [(row.pass_, row.outputs) for row in result.rows if row.provider == "torch"]
    assert outputs == [(p, o) for p in ("forward", "backward") for o in ("fresh", "reused")]


def test_rows_stand_in_the_order_asked_for_whatever_ran_first():
    result = runner.run(_settings(shapes=((64, 64), (8, 64), (32, 64))), quiet=True)
    shapes = [row.shape[0] for row in result.rows if row.provider == "copy"]
    assert shapes == [64, 8, 32]


def test_a_provider_that_is_not_here_is_reported_once():
    settings = _settings(providers=["torch", "triton", "quack"], shapes=((8, 64), (16, 64)))
    result = runner.run(settings, quiet=True)
    reasons = [(skip.provider, skip.problem, skip.reason) for skip in result.skipped]
    assert reasons == [(p, "all", "runs on a GPU only") for p in ("triton", "quack")]


def test_a_wrong_provider_is_not_timed():
    softmax = cases.all_ops()["softmax"]
    wrong = {**softmax.functions, "torch": lambda x: torch.softmax(x, 0)}
    op = dataclasses.replace(softmax, functions=wrong)
    result = runner.run(dataclasses.replace(_settings(), ops=[op]), quiet=True)
    assert [row.provider for row in result.rows] == ["copy"]
    assert "VerificationError: relative error" in result.skipped[0].reason


def test_what_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(machine, "free_memory_bytes", lambda _: 1000)
    result = runner.run(_settings(), quiet=True)
    assert result.rows == []
    assert result.skipped[0].reason == "does not fit into the memory"


def test_each_op_has_one_problem_before_any_has_another(monkeypatch):
    measured = []
    monkeypatch.setattr(runner._Run, "_measure", lambda _, problem, __: measured.append(problem))
    settings = _settings(
        ops=("softmax", "rms_norm", "gelu"), passes=("forward", "backward"),
        shapes=((64, 64), (8, 64)), left_out=[("gelu", "backward")],
    )  # fmt: skip
    runner.run(settings, quiet=True)
    assert [(p.op, p.pass_, p.shape[0]) for p in measured] == [
        ("softmax", "forward", 8), ("rms_norm", "forward", 8), ("gelu", "forward", 8),
        ("softmax", "backward", 8), ("rms_norm", "backward", 8), ("gelu", "forward", 64),
        ("softmax", "forward", 64), ("rms_norm", "forward", 64),
        ("softmax", "backward", 64), ("rms_norm", "backward", 64),
    ]  # fmt: skip


def test_the_budget_ends_the_run(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    settings = _settings(shapes=((64, 64), (8, 64), (32, 64)), budget_seconds=15.0)
    result = runner.run(settings, quiet=True)
    assert {row.shape[0] for row in result.rows} == {8}  # the smallest comes first
    assert [skip.reason for skip in result.skipped] == ["the time was used up"] * 2


def test_an_interrupted_run_keeps_what_is_measured(monkeypatch):
    interleave, measured = runner.interleave, []

    def interrupted_second(*arguments):
        if measured:
            raise KeyboardInterrupt
        measured.append(interleave(*arguments))
        return measured[0]

    monkeypatch.setattr(runner, "interleave", interrupted_second)
    result = runner.run(_settings(shapes=((64, 64), (8, 64), (32, 64))), quiet=True)
    assert {row.shape[0] for row in result.rows} == {8}
    assert [skip.reason for skip in result.skipped] == ["interrupted"] * 2


def test_weight_dtypes_reach_the_norms_only():
    settings = _settings(ops=("softmax", "rms_norm"), weight_dtypes=[None, torch.float64])
    dtypes = [(p.op, p.weight_dtype) for p in settings.problems()]
    assert dtypes == [
        ("softmax", torch.float32), ("rms_norm", torch.float32), ("rms_norm", torch.float64),
    ]  # fmt: skip


def test_no_problem_is_measured_twice():
    settings = _settings(ops=("rms_norm",), weight_dtypes=[None, torch.float32])
    assert len(settings.problems()) == 1


def test_interleaving_gives_every_stopwatch_as_many_samples():
    class Counter:
        def __init__(self):
            self.count = 0

        def start(self):
            self.count += 1

        def microseconds(self):
            return float(self.count)

    watches = {name: Counter() for name in "abc"}
    summaries = timing.interleave(watches, timing.WallTimer(), seconds=0.0)
    counts = {watch.count for watch in watches.values()}
    assert counts == {timing.MIN_ROUNDS + 1}  # the first round is not counted
    assert {s.samples for s in summaries.values()} == {timing.MIN_ROUNDS}


def test_the_wall_clock_repeats_short_calls(monkeypatch):
    now, calls = 0.0, []

    def call():
        nonlocal now
        now += 1e-4
        calls.append(now)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    watch = timing.WallTimer().stopwatch([call])
    before = len(calls)
    watch.start()
    assert watch.microseconds() == pytest.approx(100)
    assert len(calls) - before >= 20  # of which two milliseconds consist


def test_compiled_functions_are_kept_within_a_problem(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: calls.append(options) or (lambda: f))
    compiled = providers.Compiled("default")
    first = compiled(len)
    assert compiled(len) is first
    compiled.reset()
    assert compiled(len) is not first
    assert calls == [{"mode": "default", "dynamic": False}] * 2


def test_a_compiler_that_fails_is_a_reason(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no compiler\nlong trace")

    monkeypatch.setattr(torch, "compile", fail)
    reason = providers.why_absent("compile", CPU)
    assert reason == "torch.compile does not work here (RuntimeError: no compiler)"


@pytest.mark.cuda
@pytest.mark.parametrize("timer", ["graph", "events"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_run_on_a_gpu(timer):
    device = torch.device("cuda")
    for pass_ in ("forward", "backward", "both"):
        settings = _settings(
            ops=("rms_norm", "add_layer_norm", "softmax"), passes=(pass_,), device=device,
            shapes=((4096, 1024),), providers=["torch", "triton", "ours"], timer=timer,
        )  # fmt: skip
        result = runner.run(settings, quiet=True)
        problems = {str(skip) for skip in result.skipped if skip.problem != "all"}
        assert problems == set()
        assert all(row.cold for row in result.rows)
