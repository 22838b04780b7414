# SPDX-License-Identifier: MIT
"""``quick_benchmark``, ``benchmark_kernel`` and ``compare_implementations``."""

from __future__ import annotations

import itertools

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.profile import timing
from transformer_kernels.profile.compare import plot_comparison
from transformer_kernels.testing.inputs import poisoned

CPU = torch.device("cpu")
QUICK = {"warmup": 1, "repeat": 2, "seconds": 0}
compare = tfk.profile.compare_implementations


def _ones_of(x):
    return torch.softmax(x, 0)


def _torchs(x):
    return torch.softmax(x, -1)


def _ours(x):
    return tfk.functional.softmax(x, -1)


# ---- times --------------------------------------------------------------------------------------


def test_a_quick_benchmark_has_all_figures():
    found = tfk.profile.quick_benchmark(torch.softmax, torch.randn(64, 64), -1, seconds=0)
    assert found.name == "softmax"
    assert 0 < found.p10 <= found.median <= found.p90
    assert found.p10 / 2 < found.mean_time
    assert found.spread == (found.p90 - found.p10) / 2 / found.median
    assert found.samples >= 9
    assert 0 < found.warmup <= 60
    assert (found.timer, found.cold, found.bytes) == ("wall clock", False, None)
    assert "TIME OF ONE CALL" in str(found)
    (record,) = found.records()
    assert record["spread"] == found.spread
    assert found.scalars()["softmax/median_us"] == found.median


def test_the_warm_up_ends_where_calls_get_no_faster(monkeypatch):
    durations = [9.0, 7.0, 5.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    clock = itertools.accumulate(itertools.chain.from_iterable((0.0, d * 1e-6) for d in durations))
    ticks = itertools.chain([0.0], clock)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert len(timing.warm_up(lambda: None, CPU)) == 10  # 1, 1, 1 after 2, 1, 1
    calls = []
    monkeypatch.undo()
    assert len(timing.warm_up(lambda: calls.append(1), CPU, 7)) == len(calls) == 7


def test_a_slow_warm_up_ends_by_the_clock(monkeypatch):
    ticks = itertools.count(0.0, 1.5)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert timing.warm_up(lambda: None, CPU) == [1.5]


def test_a_kernel_is_benchmarked_so_often():
    x = torch.randn(16, 32)
    found = tfk.profile.benchmark_kernel(_ours, x, warmup=3, repeat=4)
    assert (found.warmup, found.samples) == (3, 4)
    assert found.bytes == 2 * x.nbytes
    assert found.gbps == pytest.approx(found.bytes / found.median / 1e3)
    assert found.of_copy == found.copy_us / found.median
    assert found.flops is None
    assert found.tflops is None


def test_inputs_are_a_tensor_a_sequence_or_a_dict():
    x = torch.randn(4, 8)
    for inputs in (x, [x], (x,), {"x": x}):
        assert tfk.profile.benchmark_kernel(_ours, inputs, **QUICK).bytes == 2 * x.nbytes


def test_bytes_of_other_kernels_are_not_guessed():
    x = torch.randn(4, 8)
    for function in (_torchs, lambda x: _ours(x) + 1, lambda _: None):
        found = tfk.profile.benchmark_kernel(function, x, **QUICK)
        assert (found.bytes, found.flops, found.of_copy) == (None, None, None)
    found = tfk.profile.benchmark_kernel(_torchs, x, **QUICK, bytes=256, flops=1e3)
    assert (found.bytes, found.flops) == (256, 1e3)
    assert found.tflops == pytest.approx(1e3 / found.median / 1e6)


def test_operations_of_our_attention_are_known():
    q = torch.randn(1, 8, 2, 4)
    found = tfk.profile.benchmark_kernel(tfk.functional.attention, (q, q, q), **QUICK)
    assert found.flops == 4 * 8 * 8 * 2 * 4


def test_inputs_are_not_changed_by_being_timed_elsewhere():
    x = torch.zeros(4)
    result = compare({"add": lambda x: x.add_(1)}, x, **QUICK)
    assert result.refused == {}
    assert torch.equal(x, torch.zeros(4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeat": 0}, "benchmark_kernel: repeat is 0, expected at least 1"),
        ({"repeat": 2.5}, r"benchmark_kernel: repeat is 2\.5, expected an int"),
        ({"warmup": -1}, "benchmark_kernel: warmup is -1, expected at least 0"),
        ({"seconds": -1}, "benchmark_kernel: seconds is -1, expected at least 0"),
        ({"seconds": float("nan")}, "benchmark_kernel: seconds is nan, expected at least 0"),
        ({"seconds": "1"}, "benchmark_kernel: seconds is '1', expected a number"),
        ({"timer": "sun"}, "benchmark_kernel: timer is 'sun', expected 'graph' or 'events'"),
        ({"bytes": -4}, "benchmark_kernel: bytes is -4, expected at least 0"),
        ({"inputs": 3}, "benchmark_kernel: inputs is int, expected a Tensor, a sequence or a dict"),
        ({"inputs": "xy"}, "benchmark_kernel: inputs is str, expected a Tensor"),
        ({"function": 3}, "benchmark_kernel: function is int, expected a function or a module"),
        ({"device": "tpu9"}, "benchmark_kernel: device is 'tpu9', expected 'cpu' or 'cuda'"),
    ],
)
def test_a_wrong_argument_is_named(changes, message):
    arguments = {"function": _torchs, "inputs": torch.ones(2, 2), **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        tfk.profile.benchmark_kernel(**arguments)


def test_where_it_runs_has_to_be_known_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="quick_benchmark: inputs has no tensor, expected one, or"):
        tfk.profile.quick_benchmark(lambda: None)
    assert tfk.profile.quick_benchmark(lambda: None, device="cpu", seconds=0).samples >= 9


# ---- comparisons --------------------------------------------------------------------------------


def test_implementations_are_verified_and_timed():
    x = torch.randn(16, 32)
    result = compare({"torch": _torchs, "ours": _ours}, x, **QUICK)
    assert result.reference == "torch"
    assert result.refused == {}
    assert result["torch"].speedup == 1
    assert result["ours"].speedup == result["torch"].timing.median / result["ours"].timing.median
    assert result["ours"].error < 1e-5
    assert result.fastest.name in ("torch", "ours")
    assert [record["name"] for record in result.records()] == ["torch", "ours"]
    assert {"median", "spread", "speedup"} <= set(result.records()[0])
    assert set(result.scalars()) >= {"torch/median_us", "ours/mean_us"}


def test_a_wrong_implementation_is_refused_and_not_timed():
    calls = {"wrong": 0, "nearly": 0}

    def wrong(x):
        calls["wrong"] += 1
        return _ones_of(x)

    def nearly(x):
        calls["nearly"] += 1
        return _torchs(x) * 1.001

    x = torch.randn(16, 32)
    result = compare({"right": _torchs, "wrong": wrong, "nearly": nearly}, x, **QUICK)
    assert set(result.refused) == {"wrong", "nearly"}
    assert "relative error" in result.refused["wrong"]
    assert result["wrong"].timing is None
    assert result["right"].timing is not None
    assert calls == {"wrong": 2, "nearly": 2}  # for its verification
    assert "not timed: wrong: relative error" in result.text()
    assert compare({"a": _torchs, "b": nearly}, x, tolerance=0.01, **QUICK).refused == {}


def test_one_wrong_element_is_refused():
    def spoilt(x):
        y = _torchs(x)
        y[3, 5] += 1e-3
        return y

    result = compare({"right": _torchs, "spoilt": spoilt}, torch.randn(500, 100), **QUICK)
    assert "worst element" in result.refused["spoilt"]


def test_what_is_not_written_is_seen():
    def half(x):
        y = torch.empty_like(x)
        y[:8] = _torchs(x)[:8]
        return y

    with poisoned():  # memory that was freed may hold the right numbers
        result = compare({"right": _torchs, "half": half}, torch.randn(16, 4096), **QUICK)
    assert "half" in result.refused


def test_results_of_another_kind_are_refused():
    x = torch.randn(4, 6)
    result = compare(
        {
            "right": lambda x: (x.argmax(-1), x),
            "one": lambda x: x.argmax(-1),
            "shape": lambda x: (x.argmax(-1), x.t()),
            "index": lambda x: (x.argmin(-1), x),
            "nan": lambda x: (x.argmax(-1), x / 0 * 0),
            "raises": lambda _: 1 / 0,
        },
        x,
        **QUICK,
    )
    assert result.refused == {
        "one": "gave 1 results, expected 2",
        "shape": "a result has shape (6, 4), expected (4, 6)",
        "index": "a result of numbers that are not floating-point differs",
        "nan": "a result holds NaN or infinity, or was not written",
        "raises": "ZeroDivisionError: division by zero",
    }


def test_infinities_and_zeros_are_compared_too():
    x = torch.tensor([0.0, -1.0, 1.0])
    result = compare(
        {"log": torch.log, "finite": lambda x: torch.log(x.abs() + 1), "zeros": torch.zeros_like},
        x,
        **QUICK,
    )
    expected = "a result is finite where infinity or NaN is expected"
    assert result.refused == {"finite": expected, "zeros": expected}
    result = compare({"zeros": torch.zeros_like, "x": lambda x: x}, x, **QUICK)
    assert result.refused == {"x": "a result is not zero, expected zeros"}


def test_a_reference_runs_in_float64():
    seen = []

    def reference(x):
        seen.append(x.dtype)
        return _torchs(x)

    x = torch.randn(16, 32).bfloat16()
    result = compare({"torch": _torchs, "ours": _ours}, x, reference=reference, **QUICK)
    assert seen == [torch.float64]
    assert result.reference == "reference in float64"
    assert result.refused == {}
    assert 1e-4 < result["ours"].error < 1.2e-2


def test_a_reference_has_a_name():
    x = torch.randn(4, 8)
    result = compare({"wrong": _ones_of, "right": _ours}, x, reference="right", **QUICK)
    assert set(result.refused) == {"wrong"}
    assert result["right"].speedup is None  # the first was not timed
    with pytest.raises(KeyError):
        _ = result["absent"]


@pytest.mark.parametrize(
    ("implementations", "changes", "message"),
    [
        ({}, {}, "compare_implementations: implementations is {}, expected functions by"),
        (_torchs, {}, "compare_implementations: implementations is .*, expected functions by"),
        ({"a": 3}, {}, r"compare_implementations: implementations\['a'\] is int, expected a func"),
        ({"a": _ours}, {"reference": "b"}, "reference is 'b', expected a function or one of 'a'"),
        ({"a": _ours}, {"tolerance": "x"}, "tolerance is 'x', expected a number"),
    ],
)
def test_a_wrong_comparison_is_named(implementations, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        compare(implementations, torch.ones(2, 2), **changes)


def test_a_comparison_is_drawn(tmp_path):
    x = torch.randn(4, 8)
    result = compare({"torch": _torchs, "mine": _ours, "wrong": _ones_of}, x, **QUICK)
    for name in ("bars.svg", "bars.png"):
        assert plot_comparison(result, tmp_path / "new" / name).stat().st_size > 1000
    text = (tmp_path / "new" / "bars.svg").read_text()
    assert "<svg" in text
    with pytest.raises(
        TypeError, match="plot_comparison: comparison is int, expected a Comparison"
    ):
        plot_comparison(3, tmp_path / "x.svg")
    refused = compare({"a": _ours, "b": _ones_of}, x, reference=_ones_of, **QUICK)
    empty = type(refused)(refused.reference, [refused["a"]])
    with pytest.raises(ValueError, match="plot_comparison: comparison has no times, expected"):
        plot_comparison(empty, tmp_path / "x.svg")


@pytest.mark.cuda
def test_a_gpu_is_timed_by_graphs_and_by_events():
    x = torch.randn(64, 256, device="cuda")
    for timer, name in (("graph", "CUDA graph"), ("events", "CUDA events")):
        found = tfk.profile.benchmark_kernel(_ours, x, repeat=5, timer=timer)
        assert (found.timer, found.samples, found.bytes) == (name, 5, 2 * x.nbytes)
        assert found.median > 0
    assert tfk.profile.quick_benchmark(_ours, x, seconds=0.05).timer == "CUDA events"
    result = compare({"torch": _torchs, "ours": _ours, "wrong": _ones_of}, x, seconds=0.05)
    assert set(result.refused) == {"wrong"}


@pytest.mark.cuda
def test_what_a_graph_cannot_hold_is_named():
    x = torch.randn(64, device="cuda")
    with pytest.raises(ValueError, match="timer is 'graph', expected 'events', since"):
        tfk.profile.benchmark_kernel(lambda x: x.sum().item(), x)
    assert torch.randn(2, device="cuda").isfinite().all()  # PyTorch's generator goes on
