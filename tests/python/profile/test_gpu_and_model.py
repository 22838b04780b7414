# SPDX-License-Identifier: MIT
"""``GPUProfiler``, ``profile_model_inference``, TensorBoard, and the cost of importing."""

from __future__ import annotations

import importlib
import json
import sys
import time
import types

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.profile import _report

# ---- sections -----------------------------------------------------------------------------------


def test_sections_are_timed_by_the_clock_where_that_is_asked_for():
    with tfk.profile.GPUProfiler("cpu") as profiler:
        for _ in range(3):
            with profiler.section("outer"):
                time.sleep(0.002)
                with profiler.section("inner"):
                    time.sleep(0.002)
    report = profiler.report
    assert [section.name for section in report.sections] == ["outer", "inner"]
    outer, inner = report["outer"], report["inner"]
    assert (outer.count, inner.count) == (3, 3)
    assert inner.total_us >= 6000
    assert outer.total_us >= inner.total_us + 6000
    assert report.window_us >= outer.total_us
    assert outer.share == outer.total_us / report.window_us
    assert outer.p10_us <= outer.median_us <= outer.p90_us
    assert "a CPU, no GPU" in report.text()
    assert report.records()[1]["name"] == "inner"
    assert report.scalars()["sections/inner/mean_us"] == inner.mean_us
    assert report.peak_bytes is None
    with pytest.raises(KeyError):
        _ = report["absent"]


def test_sections_decorate_and_lie_in_themselves():
    profiler = tfk.profile.GPUProfiler("cpu")

    @profiler.section("factorial")
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    @profiler
    def run():
        return factorial(4)

    assert run() == 24
    assert profiler.report["factorial"].count == 5
    run()
    assert profiler.report["factorial"].count == 5  # of the last window


def test_a_section_that_raises_is_kept():
    profiler = tfk.profile.GPUProfiler("cpu")

    @profiler
    def fail():
        with profiler.section("bad"):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert profiler.report["bad"].count == 1


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match="GPUProfiler: device is None and PyTorch sees no GPU, exp"
    ):
        tfk.profile.GPUProfiler()


def test_misuse_of_sections_is_named():
    profiler = tfk.profile.GPUProfiler("cpu")
    with pytest.raises(ValueError, match="GPUProfiler: nothing was recorded"):
        _ = profiler.report
    with pytest.raises(ValueError, match="GPUProfiler: section is called outside its window"):
        profiler.section("early").__enter__()
    with pytest.raises(TypeError, match="GPUProfiler: name is int, expected a str"):
        profiler.section(3)


@pytest.mark.cuda
def test_sections_of_a_gpu():
    x = torch.randn(2048, 2048, device="cuda")
    with tfk.profile.GPUProfiler() as profiler, profiler.section("product"):
        x @ x
    report = profiler.report
    assert 0 < report["product"].total_us <= report.window_us
    assert report.measured_by == "CUDA events around each section"
    assert report.peak_bytes >= 2 * x.nbytes


# ---- models -------------------------------------------------------------------------------------


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), tfk.nn.GELU(), nn.Linear(16, 4, bias=False))


def test_a_model_is_reported():
    model, x = _model(), torch.randn(3, 8)
    model[1].train()
    modes = [module.training for module in model.modules()]
    report = tfk.profile.profile_model_inference(model, x, seconds=0, warmup=2)
    assert (report.model, report.device, report.items) == ("Sequential", "cpu", 3)
    assert report.parameters == 8 * 16 + 16 + 16 * 4
    assert report.parameter_bytes == 4 * report.parameters
    assert report.flops == 2 * 3 * (8 * 16 + 16 * 4)
    assert report.peak_bytes == 4 * 3 * (16 + 16)  # one that is read, one that is written
    assert report.items_per_second == pytest.approx(3e6 / report.timing.median)
    assert report.timing.warmup == 2
    assert (report.kernels.launches, report.kernels.steps) == (9, 3)
    assert [(row.path, row.kind, row.calls) for row in sorted(report.modules, key=_path)] == [
        ("(the model)", "Sequential", 1), ("0", "Linear", 1), ("1", "GELU", 1), ("2", "Linear", 1),
    ]  # fmt: skip
    assert all(row.kernel_us is None and row.host_us > 0 for row in report.modules)
    assert [module.training for module in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    text = str(report)
    for words in ("INFERENCE: Sequential", "MODULES", "gelu_forward", "OUR OPS", "3 launches"):
        assert words in text
    assert json.loads(json.dumps(report.as_dict()))["modules"]
    assert report.records()[0]["path"]
    assert report.scalars()["inference/median_us"] == report.timing.median


def _path(row) -> str:
    return row.path


def test_a_module_that_is_called_twice_or_inside_itself():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, scale):
            return self.inner(self.inner(x)) * scale

    report = tfk.profile.profile_model_inference(
        Twice(), {"x": torch.randn(2, 4), "scale": 2.0}, seconds=0, warmup=0
    )
    assert {row.path: row.calls for row in report.modules} == {"(the model)": 1, "inner": 2}


def test_a_model_that_raises_keeps_its_mode_and_hooks():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("mine")

    model = Broken()
    with pytest.raises(RuntimeError, match="mine"):
        tfk.profile.profile_model_inference(model, torch.ones(1))
    assert model.training
    with pytest.raises(TypeError, match="profile_model_inference: model is function, expected an"):
        tfk.profile.profile_model_inference(lambda x: x, torch.ones(1))


def test_what_hides_its_modules_says_so():
    class Hidden(torch.jit.ScriptModule):
        def forward(self, x):
            return x.exp()

    report = tfk.profile.profile_model_inference(Hidden(), torch.ones(2), seconds=0, warmup=1)
    assert (report.modules, report.flops, report.bytes) == ([], None, None)
    assert "hidden by TorchScript" in str(report)


@pytest.mark.cuda
def test_a_model_on_a_gpu():
    model, x = _model().cuda(), torch.randn(64, 8, device="cuda")
    report = tfk.profile.profile_model_inference(model, x, seconds=0.05)
    assert report.device == "cuda"
    assert report.peak_bytes > 0
    whole = next(row for row in report.modules if row.path == "(the model)")
    parts = [row.kernel_us for row in report.modules if row is not whole]
    assert whole.kernel_us == pytest.approx(sum(parts), rel=0.01)


# ---- TensorBoard and imports --------------------------------------------------------------------


class _Writer:
    written: list[tuple[str, float, int]]

    def __init__(self, folder: str = "") -> None:
        self.folder, self.written, self.closed = folder, [], False
        _Writer.last = self

    def add_scalar(self, name, value, step):
        self.written.append((name, value, step))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


def test_scalars_go_to_tensorboard(monkeypatch, tmp_path):
    found = tfk.profile.quick_benchmark(abs, 3, seconds=0, device="cpu")
    writer = _Writer()
    found.to_tensorboard(writer, step=7)
    assert ("abs/median_us", found.median, 7) in writer.written
    stand_in = types.SimpleNamespace(SummaryWriter=_Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    found.to_tensorboard(tmp_path)
    assert (_Writer.last.folder, _Writer.last.closed) == (str(tmp_path), True)
    assert ("abs/mean_us", found.mean_time, 0) in _Writer.last.written


def test_a_missing_tensorboard_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="to_tensorboard: the package tensorboard is absent, exp"):
        _report.write_scalars(tmp_path, {"a": 1.0}, 0)


def test_a_real_tensorboard_takes_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    tfk.profile.quick_benchmark(abs, 3, seconds=0, device="cpu").to_tensorboard(tmp_path)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_records_are_a_table_of_pandas():
    pandas = pytest.importorskip("pandas")
    with tfk.profile.KernelProfiler("cpu") as profiler:
        torch.ones(3).exp().cos()
    frame = pandas.DataFrame(profiler.report.records())
    assert set(frame["name"]) == {"ones", "exp", "cos"}


def test_the_package_loads_no_profiler(monkeypatch):
    parts = ("transformer_kernels.profile.", "transformer_kernels.bench")
    for name in [name for name in sys.modules if name.startswith(parts)]:
        monkeypatch.delitem(sys.modules, name)
    importlib.reload(tfk.profile)
    assert not [name for name in sys.modules if name.startswith(parts)]


def test_every_name_is_found():
    for name in tfk.profile.__all__:
        assert getattr(tfk.profile, name).__name__ == name
    assert set(tfk.profile.__all__) <= set(dir(tfk.profile))
    with pytest.raises(AttributeError, match="has no attribute 'Telescope'"):
        _ = tfk.profile.Telescope
