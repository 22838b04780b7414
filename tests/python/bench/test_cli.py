# SPDX-License-Identifier: MIT
from __future__ import annotations

import re

import pytest
import torch

import transformer_kernels
from transformer_kernels import cli
from transformer_kernels.bench import cases, kernels, plots, runner
from transformer_kernels.bench.console import Progress
from transformer_kernels.measure import busy, ceilings, schema, sweeps
from transformer_kernels.measure.case import Problem

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Baselines and copy rates of tests stay out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def files(make_result, make_row, tmp_path):
    """Three result files: a base, one twice as fast, one twice as slow."""
    paths = {}
    for name, median in (("base", 100), ("fast", 50), ("slow", 200)):
        paths[name] = tmp_path / f"{name}.json"
        schema.save(make_result([make_row(median=median)]), paths[name])
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(
    ("after", "status", "word"),
    [("base", 0, "1 same"), ("fast", 0, "1 faster"), ("slow", 1, "1 slower")],
)
def test_compare_exits_by_the_verdict(files, capsys, after, status, word):
    assert cli.main(["compare", files["base"], files[after]]) == status
    assert word in capsys.readouterr().out


def test_compare_names_two_machines(files, make_result, make_row, tmp_path, capsys):
    other = make_result([make_row()])
    machine = schema.Machine("cpu", "Other CPU", "Other CPU", 4, 8.0, "Linux x86_64")
    path = tmp_path / "other.json"
    schema.save(schema.Result(**{**vars(other), "machine": machine}), path)
    cli.main(["compare", files["base"], str(path)])
    assert "different machines: Test CPU and Other CPU" in capsys.readouterr().out


def test_compare_by_ceiling_and_tolerance(files):
    assert cli.main(["compare", files["base"], files["slow"], "--by", "ceiling"]) == 0
    assert cli.main(["compare", files["base"], files["slow"], "--tolerance", "3"]) == 0


def test_files_without_a_common_row_fail(files, make_result, make_row, tmp_path, capsys):
    other = tmp_path / "other.json"
    schema.save(make_result([make_row(op="softmax")]), other)
    assert cli.main(["compare", files["base"], str(other)]) == 2
    assert "the results have no row of ours in common" in capsys.readouterr().err


@pytest.fixture
def measured(monkeypatch, make_result, make_row):
    """Stands in for a run: `bench` measures the row of this median."""

    def set_median(median, provider="ours"):
        result = make_result([make_row("copy"), make_row(provider, median)])
        monkeypatch.setattr(runner, "run", lambda *_, **__: result)

    return set_median


def test_a_baseline_is_a_gate(measured, tmp_path, capsys):
    measured(100)
    assert cli.main(["bench", "layer_norm", "--save-baseline", "main"]) == 0
    assert (tmp_path / "transformer_kernels" / "baselines" / "main.json").is_file()
    assert cli.main(["bench", "layer_norm", "--against", "main"]) == 0
    measured(150)
    assert cli.main(["bench", "layer_norm", "--against", "main", "--tolerance", "0.6"]) == 0
    gate = ["bench", "layer_norm", "--against", "main", "--save-baseline", "main"]
    assert cli.main(gate) == 1
    assert "1 slower" in capsys.readouterr().out
    assert cli.main(gate) == 1  # the slower result was not kept
    measured(90)
    assert cli.main(gate) == 0
    measured(100)
    assert cli.main(gate) == 1  # the faster one was


def test_a_baseline_that_is_missing_is_named_before_the_run(measured, capsys):
    measured(100)
    assert cli.main(["bench", "--save-baseline", "a"]) == 0
    assert cli.main(["bench", "--against", "b"]) == 2
    assert "baseline is 'b', expected one that `bench --save-baseline` kept: a" in (
        capsys.readouterr().err
    )
    assert cli.main(["bench", "--save-baseline", "../a"]) == 2
    assert cli.main(["bench", "host", "--against", "a"]) == 2


def test_a_busy_machine_is_told_below_the_table(measured, monkeypatch, capsys):
    measured(100)
    for share, told in ((0.6, True), (0.1, False)):
        signs = busy.Signs(share, None, (20.0,), 20.0)
        monkeypatch.setattr(busy.Watch, "signs", lambda *_, signs=signs: signs)
        assert cli.main(["bench", "layer_norm", "--device", "cpu"]) == 0
        assert ("busy: other programs took 60 %" in capsys.readouterr().out) is told


def test_a_run_without_a_provider_fails(measured, capsys):
    assert cli.main(["bench", "softmax", "--device", "cpu", "--providers", "fa4,cudnn"]) == 1
    assert "no provider can run: fa4: runs on a GPU only; cudnn: runs" in capsys.readouterr().err
    measured(100, "copy")
    assert cli.main(["bench", "softmax", "--device", "cpu", "--providers", "torch"]) == 1
    assert "nothing was measured" in capsys.readouterr().err


def test_sizes_of_models_become_shapes(monkeypatch, make_result, make_row):
    asked = {}

    def run(settings, quiet):
        asked.update({op.name: settings.shapes(op, torch.float32) for op in settings.ops})
        return make_result([make_row()])

    monkeypatch.setattr(runner, "run", run)
    assert cli.main(["bench", "--device", "cpu", "--batch", "2,4", "--hidden", "128"]) == 0
    assert asked["layer_norm"] == [(2048, 128), (4096, 128)]
    assert asked["attention"] == [(2, 1024, 2, 64), (4, 1024, 2, 64)]
    assert asked["linear"] == [(2048, 128, 512), (4096, 128, 512)]
    assert asked["embedding"][0] == (2, 1024, 50257, 128)
    assert asked["cross_entropy"] == [(2048, 50257), (4096, 50257)]
    assert "gather_reduce" not in asked
    for op in cases.select([]):
        for shape in asked.get(op.name, []):
            assert op.grid.parse(sweeps.shape_text(shape)) == [shape]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "graph", "--hidden", "64"], "gather_reduce has no size of a batch"),
        (["bench", "attention", "--hidden", "100"], "hidden size is 100, expected a multiple of"),
        (["bench", "--shapes", "8x8", "--batch", "2"], "--shapes is given beside --batch"),
        (["report", "absent.json"], "absent.json"),
        (["bench", "no_such_op"], "unknown op 'no_such_op'"),
        (["bench", "--outputs", "old"], "--outputs is 'old', expected one of fresh, reused"),
        (["bench", "--dtype", "int8"], "--dtype is 'int8', expected one of"),
        (["bench", "--passes", "sideways"], "--passes is 'sideways'"),
        (["bench", "--providers", "me"], "--providers is 'me'"),
        (["bench", "--sweep", "huge"], "--sweep is 'huge'"),
        (["bench", "--weights", "int8"], "--weights is 'int8'"),
        (["bench", "--shapes", "8by8"], "shape is '8by8', expected a form like"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_cuda_without_a_device_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "--device", "cuda"]) == 2
    assert "PyTorch sees no CUDA device" in capsys.readouterr().err


def test_list_names_everything_in_columns(capsys):
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    for op in cases.all_ops().values():
        assert re.search(rf"^  {op.name}\s+{op.key}$", text, re.MULTILINE)
    for word in ("add_rms_norm", "norm/layer_norm", "backward", "quack", "headline", "host"):
        assert word in text


def test_info_names_the_machine(capsys):
    assert cli.main(["info"]) == 0
    assert re.search(r"^machine +\S", capsys.readouterr().out, re.MULTILINE)


def test_bench_prints_saves_and_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._MATMUL_SIZE, "cpu", 64)
    path, folder = tmp_path / "result.json", tmp_path / "plots"
    status = cli.main([
        "bench", "rms_norm", "--device", "cpu", "--dtype", "float32", "--shapes", "2x4x64",
        "--providers", "torch,ours", "--seconds", "0", "--no-kernels", "--quiet",
        "--json", str(path), "--plots", str(folder),
    ])  # fmt: skip
    assert status == 0
    assert "rms_norm bwd fp32 8x64" in capsys.readouterr().out
    assert {row.pass_ for row in schema.load(path).rows} == {"forward", "backward"}
    assert (folder / "bandwidth_fp32.svg").is_file()


def test_bench_host_compares_the_cost_of_a_call(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("transformer_kernels.bench.host._ROUNDS", 2)
    monkeypatch.setattr("transformer_kernels.bench.host._CALLS", 3)
    path = tmp_path / "host.json"
    assert cli.main(["bench", "host", "--device", "cpu", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "layer_norm, with gradient" in out
    assert "attention and its backward pass, with gradient" in out
    calls = [(row.call, row.grad) for row in schema.load(path).host if row.provider == "ours"]
    for op in ("softmax", "layer_norm", "rms_norm", "gelu", "attention"):
        assert {(op, False), (op, True)} <= set(calls)
    assert len(schema.load(path).host) == 2 * len(calls)


def test_plot_writes_every_figure_twice(full_result, tmp_path, capsys):
    source = tmp_path / "full.json"
    schema.save(full_result, source)
    assert cli.main(["plot", str(source), "-o", str(tmp_path / "plots")]) == 0
    written = {path.name for path in (tmp_path / "plots").iterdir()}
    names = ("loss", "bandwidth_bf16", "speedup_bf16")
    assert written == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert len(capsys.readouterr().out.splitlines()) == len(written)


def _attention_rows(make_row, **changes):
    return [
        make_row(provider, op="attention", dtype="bfloat16", weight_dtype=None,
                 shape=[16384 // time, time, *heads, 128], tflops=100.0 + time / 100, **changes)
        for time in (512, 1024, 2048)
        for heads in ((16,), (32, 8))
        for provider in ("math", "cudnn", "ours")
    ]  # fmt: skip


def test_what_arithmetic_bounds_is_drawn_against_time(make_row, make_result, tmp_path):
    ceilings = schema.Ceilings(4000.0, 1 << 30, 800.0, 8192, "bfloat16")
    result = make_result(_attention_rows(make_row, peak_bytes=1 << 28), ceilings=ceilings)
    assert set(plots.of(result)) == {"tflops_bf16", "memory_bf16", "speedup_bf16"}
    text = plots.write(result, tmp_path)[0].read_text(encoding="utf-8")
    assert "<svg" in text
    with plots.of(result)["tflops_bf16"].figure() as drawn:
        titles = [panel.get_title(loc="left") for panel in drawn.axes if panel.axison]
        assert titles == [
            "attention forward, D = 128", "attention forward, 32/8 heads, D = 128",
        ]  # fmt: skip
        labels = [text.get_text() for text in drawn.legends[0].get_texts()]
        assert labels == ["Standard", "cuDNN", "Ours", "Matrix product"]


def test_memory_that_was_not_counted_is_not_drawn(make_row, make_result):
    assert set(plots.of(make_result(_attention_rows(make_row)))) == {
        "tflops_bf16", "speedup_bf16",
    }  # fmt: skip


def test_the_same_figures_give_the_same_svg(full_result, tmp_path):
    first, second = (plots.write(full_result, tmp_path / name) for name in "ab")
    for a, b in zip(first, second, strict=True):
        assert a.suffix == ".png" or a.read_bytes() == b.read_bytes()


def test_shapes_fold_the_leading_sizes_into_rows():
    assert sweeps.ROWS.parse("8x1024x768, 5x7") == [(8192, 768), (5, 7)]


@pytest.mark.parametrize("text", ["", "8", "8x", "x8", "8x-1", "8x8;9x9"])
def test_a_shape_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="shape is"):
        sweeps.ROWS.parse(text)


def test_headline_shapes_hold_as_many_bytes_in_every_dtype():
    narrow = sweeps.ROWS.shapes_of(["headline"], CUDA, torch.bfloat16)
    wide = sweeps.ROWS.shapes_of(["headline"], CUDA, torch.float32)
    assert narrow[0] == (65536, 768)
    assert [(2 * m, n) for m, n in wide] == narrow


@pytest.mark.parametrize("sweep", sweeps.SWEEPS)
@pytest.mark.parametrize("where", [CPU, CUDA])
def test_no_sweep_repeats_a_shape(sweep, where):
    shapes = sweeps.ROWS.shapes_of([sweep], where, torch.float32)
    assert len(shapes) == len(set(shapes)) > 0


def test_sweeps_add_up():
    both = sweeps.ROWS.shapes_of(["small", "quick"], CPU, torch.float32)
    assert set(both) == {
        shape
        for name in ("small", "quick")
        for shape in sweeps.ROWS.shapes_of([name], CPU, torch.float32)
    }


def test_the_full_sweep_holds_batch_times_sequence_times_hidden():
    shapes = sweeps.ROWS.shapes_of(["full"], CPU, torch.float32)
    for batch in (8, 32, 128):
        for sequence in (512, 2048, 8192):
            assert {(batch * sequence, hidden) for hidden in (768, 1024, 4096)} <= set(shapes)


def test_chosen_kernels_are_read_from_the_log():
    problems = [
        Problem(op, "forward", torch.float32, torch.float32, (8, 8))
        for op in ("softmax", "rms_norm")
    ]
    log = """\
[problem]0
[tfk] softmax float32 8x8: ring refused: the row is too short
[tfk] softmax float32 8x8: one shot, t32 r8 runs
noise
[problem]1
[tfk] rms_norm 8x8: avx2 runs
[tfk] rms_norm 8x8: column sums runs
"""
    found = kernels.parse_log(log, problems)
    assert list(found.values()) == ["one shot, t32 r8", "avx2 + column sums"]


def test_a_problem_survives_the_way_to_the_child():
    problem = Problem("rms_norm", "both", torch.bfloat16, torch.float32, (8, 768))
    assert kernels._from_line(kernels._to_line(problem)) == problem


@pytest.mark.slow
def test_the_child_says_which_kernels_run():
    problem = Problem("softmax", "forward", torch.float32, torch.float32, (8, 64))
    found = kernels.chosen_kernels([problem], CPU)
    loaded = transformer_kernels.info().library_loaded
    assert set(found) == ({problem} if loaded else set())


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with Progress("working", 2) as progress:
        progress.advance("item")
        assert progress._bar.tasks[0].completed == 1


def test_progress_prints_plain_lines_off_a_terminal(capsys):
    with Progress("working", 40) as progress:
        for i in range(40):
            progress.advance(f"item {i}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "working: 4/40  item 3"
    assert lines[-1] == "working: 40/40  item 39"
    assert len(lines) == 10


def test_quiet_progress_prints_nothing(capsys):
    with Progress("working", 2, quiet=True) as progress:
        progress.advance("item")
    assert capsys.readouterr().out == ""
