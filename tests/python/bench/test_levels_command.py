# SPDX-License-Identifier: MIT
"""`transformer-kernels levels`: its measurements, counts and output, and the arguments it
refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from transformer_kernels import cli
from transformer_kernels.bench import plots, report
from transformer_kernels.bench.levels import run, show
from transformer_kernels.levels import LEVELS, compiled, native
from transformer_kernels.levels.ours import Ours
from transformer_kernels.measure import schema, watch
from transformer_kernels.measure.schema import LevelCount, LevelPass, LevelRow, Skip

CPU = torch.device("cpu")
SMALL = ["--shape", "2x9x16", "--heads", "2", "--seconds", "0"]


def _row(level: str, **changes) -> LevelRow:
    row = LevelRow(
        level, "float32", [2, 9, 16], 2, True, 1e-7,
        [LevelPass(pass_, 1000.0, 900.0, 1200.0, 9) for pass_ in run.PASSES],
        [LevelCount("forward", ["mm", "mm"], 1_000_000, 2_000_000),
         LevelCount("both", ["mm", "add", "mm"], 3_000_000, 4_000_000)],
    )  # fmt: skip
    return replace(row, **changes)


def _quiet(tmp_path: Path, *arguments: str) -> schema.Result:
    path = tmp_path / "levels.json"
    status = cli.main(["levels", "--quiet", "--json", str(path), *SMALL, *arguments])
    assert status == 0
    return schema.load(path)


def test_levels_are_verified_timed_and_counted(tmp_path, capsys, device):
    folder = tmp_path / "plots"
    options = ["--device", device, "--levels", "torch,ours", "--plots", str(folder)]
    result = _quiet(tmp_path, *options, "--dtype", "float32")
    assert [row.level for row in result.levels] == ["torch", "ours"]
    for row in result.levels:
        assert 0 < row.error < 1e-5
        assert [timed.pass_ for timed in row.passes] == list(run.PASSES)
        assert all(0 < t.p10_us <= t.median_us <= t.p90_us for t in row.passes)
        forward, both = (row.count_of(pass_) for pass_ in ("forward", "both"))
        assert 0 < forward.launches < both.launches
        assert 0 < forward.bytes < both.bytes
        assert 0 < forward.peak_bytes < both.peak_bytes
    native, ours = (row.count_of("both") for row in result.levels)
    assert ours.bytes < native.bytes
    text = capsys.readouterr().out
    for words in ("1 native PyTorch", "5 C++ and CUDA", "fp32 2x9x16, 2 heads, causal"):
        assert words in text
    assert "levels: " not in text
    assert (folder / "levels.svg").is_file()


def test_names_on_a_cpu_are_those_of_the_operators(tmp_path, capsys):
    result = _quiet(tmp_path, "--device", "cpu", "--levels", "torch,ours", "--no-causal")
    native, ours = (row.count_of("forward").kernels for row in result.levels)
    assert native.count("addmm") == 4
    assert "attention_inference" in ours
    assert "bias_dropout_add_layer_norm_forward" in ours
    assert not result.levels[0].causal


def test_progress_is_shown(capsys):
    assert cli.main(["levels", "--device", "cpu", "--levels", "torch", *SMALL]) == 0
    assert "levels: 1/5  torch: verified" in capsys.readouterr().out


@pytest.mark.slow
def test_triton_on_a_cpu_is_verified_by_a_child(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    result = _quiet(tmp_path, "--device", "cpu", "--levels", "triton", "--no-causal")
    (row,) = result.levels
    assert row.error < 1e-5
    assert not row.passes
    assert not row.counts
    text = capsys.readouterr().out
    assert "not timed" in text
    assert "triton: run by Triton's interpreter, for its results, of 1x9x16" in text


def test_a_child_that_fails_is_reported(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("sys.executable", "/bin/false")
    settings = run.Settings(CPU, torch.float32, (1, 3, 8), 2, levels=["triton"], seconds=0)
    result = run.run(settings, quiet=True)
    assert not result.levels
    assert result.skipped[0].reason == "Triton's interpreter: no word from it"


@pytest.mark.slow
def test_compiled_kernels_have_names():
    """One small graph, because each kernel takes the C++ compiler seconds."""
    torch._dynamo.reset()
    x, weight = torch.randn(8, 16), torch.randn(16, 16)
    norm = torch.compile(lambda x, weight: torch.nn.functional.layer_norm(x @ weight, (16,)))
    with watch.named_kernels(CPU), torch.no_grad():
        norm(x, weight)
        names = watch.kernels(partial(norm, x, weight), CPU)
    assert "mm" in names
    assert any("fused" in name and "layer_norm" in name for name in names)


def test_a_level_that_hides_its_bytes_has_the_names_of_its_kernels(tmp_path, monkeypatch):
    traced = torch.compile(native.block, fullgraph=True, backend="eager")
    monkeypatch.setattr(compiled, "_compile", lambda: traced)
    monkeypatch.setattr(compiled.Compiled, "why_absent", lambda *_: None)
    monkeypatch.setattr(watch, "kernels", lambda *_: ["addmm", "fused_layer_norm"])
    (row,) = _quiet(tmp_path, "--device", "cpu", "--levels", "compile").levels
    forward = row.count_of("forward")
    assert forward.bytes is None
    assert forward.kernels == ["addmm", "fused_layer_norm"]
    assert row.note == "bytes not counted: the kernels that torch.compile writes are no operators"


def test_a_wrong_level_is_not_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Ours, "run", lambda _, x, *__: 2 * x)
    monkeypatch.setattr(run.held, "results", _forward_only)
    monkeypatch.setattr(run.held, "exact", _forward_only)
    result = _quiet(tmp_path, "--device", "cpu", "--levels", "ours")
    assert not result.levels
    assert result.skipped[0].reason.startswith("wrong: y: error")
    assert "not measured: ours" in capsys.readouterr().out


def test_a_level_that_fails_is_left_out_in_words(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("the compiler is lost\nin details")

    monkeypatch.setattr(Ours, "run", fail)
    result = _quiet(tmp_path, "--device", "cpu", "--levels", "torch,ours")
    assert [row.level for row in result.levels] == ["torch"]
    assert result.skipped[0].reason == "RuntimeError: the compiler is lost"


def _forward_only(block, x, dy):
    return {"y": block(x).detach()}


def test_an_absent_level_is_left_out_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Ours, "why_absent", lambda *_: "there is no library")
    result = _quiet(tmp_path, "--device", "cpu", "--levels", "torch,ours")
    assert [row.level for row in result.levels] == ["torch"]
    assert "there is no library" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--levels", "turbo"], "--levels is 'turbo', expected one of torch, torchscript"),
        (["--levels", ""], "--levels is '', expected one of torch"),
        (["--dtype", "int8"], "--dtype is 'int8', expected one of"),
        (["--shape", "8x9"], "shape is '8x9', expected a form like 4x256x384"),
        (["--shape", "0x9x8"], "shape is '0x9x8', expected a form like"),
        (["--shape", "1x2x3,4x5x6"], "--shape is '1x2x3,4x5x6', expected one"),
        (["--shape", "1x2x9", "--heads", "2"], "Block: dim is 9, expected a multiple"),
        (["--heads", "0"], "Block: num_heads is 0, expected at least 1"),
        (["--seconds", "-1"], "--seconds is -1.0, expected at least 0"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message, capsys):
    assert cli.main(["levels", "--device", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_list_names_the_levels(capsys):
    assert cli.main(["list"]) == 0
    assert ", ".join(LEVELS) in capsys.readouterr().out


def test_the_table_says_what_is_hidden_and_what_is_not_timed(make_result):
    hidden = [replace(count, bytes=None) for count in _row("torch").counts]
    result = make_result(
        levels=[
            _row("torch"),
            _row("compile", counts=hidden, note="bytes not counted: they are hidden"),
            _row("triton", passes=[], counts=[], note="run by Triton's interpreter"),
        ],
        skipped=[Skip("2x9x16", "ours", "there is no library")],
    )
    native, compiled, triton = show.render(result).splitlines()[-4:-1]
    assert "1000 ±15 %" in native
    assert "2 / 3" in native
    assert "1.0 / 3.0" in native
    assert "hidden" in compiled
    assert triton.count("not timed") == 3
    lines = show.lines(result)
    assert "compile: bytes not counted: they are hidden" in lines
    assert "not measured: ours on 2x9x16: there is no library" in lines
    assert "torch ran, forward and backward: 2 mm, add" in lines
    with plots.of(result)["levels"].figure() as drawn:
        titles = [panel.get_title(loc="left") for panel in drawn.axes]
    assert titles == ["forward", "backward", "step", "operators", "bytes moved", "memory at peak"]
    page = report.render(result)
    assert "One block in five levels" in page
    assert show.render(make_result())


def test_a_result_survives_its_file(make_result):
    result = make_result(levels=[_row("torch"), _row("triton", passes=[], counts=[])])
    assert schema.from_json(schema.to_json(result)) == result


def test_bytes_are_those_of_tensors_read_and_written():
    x, y = torch.randn(8, 16), torch.randn(16)
    seen = watch.operators(lambda: (x + y.expand(8, 16)).view(-1).relu_())
    assert seen.names == ["add", "relu_"]
    assert seen.bytes == 4 * (2 * 128 + 16) + 4 * 2 * 128


def test_peak_memory_on_a_cpu():
    def call():
        first = torch.zeros(1000)
        second = torch.zeros(500)
        del first
        return second + torch.zeros(100).sum()

    assert 4 * 1500 <= watch.peak_bytes(call, CPU) < 4 * 1500 + 4096


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("void tfk::(anonymous namespace)::row<float, 4>(tfk::Rows, int)", "row"),
        ("sm90_xmma_gemm_bf16bf16", "sm90_xmma_gemm_bf16bf16"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::F>(int, F)",
         "vectorized_elementwise_kernel"),
        ("native_layer_norm", "native_layer_norm"),
    ],
)  # fmt: skip
def test_short_names_of_kernels(kernel, short):
    assert watch.short_name(kernel) == short


@pytest.mark.cuda
def test_kernels_of_a_gpu_have_names():
    x = torch.randn(64, 64, device="cuda")
    (x @ x).relu()
    names = watch.kernels(lambda: (x @ x).relu(), torch.device("cuda"))
    assert len(names) == 2
    assert not any("Memcpy" in name for name in names)


@pytest.mark.cuda
def test_all_levels_on_a_gpu(tmp_path):
    result = _quiet(tmp_path, "--device", "cuda", "--dtype", "bfloat16")
    assert [row.level for row in result.levels] == list(LEVELS)
    for row in result.levels:
        assert [timed.pass_ for timed in row.passes] == list(run.PASSES)
        assert row.count_of("both").launches > row.count_of("forward").launches > 0
