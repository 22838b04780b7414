# SPDX-License-Identifier: MIT
from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from transformer_kernels import cli
from transformer_kernels.bench import cases, training
from transformer_kernels.bench.training import documentation
from transformer_kernels.measure import busy, ceilings, schema
from transformer_kernels.measure.schema import Training, TrainingRun
from transformer_kernels.testing import pretrained

pytest.importorskip("transformers")

from transformer_kernels.demo import run as demo
from transformer_kernels.demo import search, show
from transformer_kernels.demo.answer import Answer
from transformer_kernels.generation import chat

EXAMPLES = Path(__file__).parents[3] / "examples"


def _demo(*arguments: str) -> int:
    return cli.main(["demo", "--quick", "--device", "cpu", *arguments])


def test_the_text_is_bytes():
    text = documentation()
    assert text.dtype is torch.long
    assert len(text) > 100_000
    assert int(text.min()) >= 0
    assert int(text.max()) < 256


@pytest.fixture
def few_ops(monkeypatch):
    """Two ops in place of all, small ceilings, and no trained model."""
    monkeypatch.setattr(pretrained, "minilm", lambda: None)
    monkeypatch.setattr(chat, "_PACKAGE", "no_such_package")
    chosen = [cases.all_ops()[name] for name in ("gelu", "softmax")]
    monkeypatch.setattr(cases, "select", lambda _: chosen)
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._MATMUL_SIZE, "cpu", 64)
    monkeypatch.setattr(ceilings, "_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def one_thread():
    """Models so small are faster on one thread, and wait for no other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _quiet(monkeypatch, share: float = 0.0) -> None:
    signs = busy.Signs(share, None, (20.0,), 20.0)
    monkeypatch.setattr(busy.Watch, "signs", lambda *_: signs)


def test_the_short_demo_runs_to_the_end(few_ops, tmp_path, monkeypatch, capsys):
    _quiet(monkeypatch)
    page, figures = tmp_path / "report.html", tmp_path / "demo.json"
    assert _demo("-o", str(page), "--json", str(figures), "--plot", str(tmp_path / "plots")) == 0
    text = capsys.readouterr().out
    parts = ["Training GPT-2, 2 layers", "TRAINING SPEED", "TRAINING LOSS",
             "the same next byte for", "No search with a trained model",
             "No text of a trained model", "SPEED-UP OVER PYTORCH",
             "PACK BENCHMARK"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "tokens/s" in text[: places[0]]  # the progress tells it while the models train
    assert "BUSY" not in text
    assert not re.search(r"kernels: \d", text)  # six steps give no speed-up
    assert page.read_text(encoding="utf-8").count("<svg") >= 2
    assert (tmp_path / "plots" / "loss.svg").is_file()
    result = schema.load(figures)
    runs = result.training.runs
    assert result.busy is None
    assert [run.name for run in runs] == ["stock", "stock again", "ours"]
    assert all(run.losses[-1] < run.losses[0] for run in runs)
    assert all(abs(run.losses[0] - runs[0].losses[0]) < 0.1 for run in runs)
    same, every = map(int, re.search(r"byte for (\d+) of (\d+)", text).groups())
    assert 0.98 * every <= same <= every == 4 * 64


def test_a_busy_machine_is_told_as_such(few_ops, tmp_path, monkeypatch, capsys):
    _quiet(monkeypatch, share=0.63)
    monkeypatch.setattr(training, "LEAST_STEPS", 3)
    page, figures = tmp_path / "report.html", tmp_path / "demo.json"
    options = ["--model", "language-model", "--batch-size", "2", "--seq-len", "16", "--d-model",
               "32", "--num-heads", "4", "--steps", "3", "--profile-memory"]  # fmt: skip
    assert _demo("-o", str(page), "--json", str(figures), *options) == 0
    text = capsys.readouterr().out
    assert "LanguageModel, 2 layers, width 32, 4 heads; bytes of Python's documentation, 2x16" in (
        text
    )
    assert "THE MACHINE IS BUSY: other programs took 63 % of its processors" in text
    assert not re.search(r"\d\.\d\dx", text)
    assert "SPEED-UP OVER PYTORCH" not in text
    assert re.search(r"ours +│ +[\d.]+ │ +\d+ %", text)  # the memory of a step
    assert schema.load(figures).busy == "other programs took 63 % of its processors"
    assert "The machine was busy" in page.read_text(encoding="utf-8")


def test_a_search_is_told_by_its_speed_and_whether_it_finds_the_same():
    found = {
        name: search.Found(torch.zeros(90, 4), seconds, [seconds / 100], [[2, 1], [0, second]])
        for name, seconds, second in (("stock", 3.0, 1), ("fused", 1.5, 2))
    }
    text = show.search(found, None)
    assert "90 paragraphs of Python's documentation; 1 of 2 questions find the same" in text
    assert re.search(r"stock +│ +30 │ +33 │ +1.00x", text)
    assert re.search(r"fused +│ +60 │ +67 │ +2.00x", text)
    assert "2.00x" not in show.search(found, "busy")
    for one in found.values():
        one.paragraphs = one.paragraphs[:30]
    assert "2.00x" not in show.search(found, None)


def test_an_answer_is_shown_with_both_rates():
    text = show.answer("Why?", Answer("Because.", stock=20.0, ours=50.0), None)
    assert "asked: Why?\n  Because.\n20 tokens/s stock" in text
    assert "50 with our kernels: 2.50x" in text
    assert "2.50x" not in show.answer("Why?", Answer("Because.", 20.0, 50.0), "busy")


def test_thirty_steps_on_a_quiet_machine_give_a_speed_up():
    runs = [TrainingRun("stock", [2.0] * 30, 100.0), TrainingRun("ours", [2.0] * 30, 250.0)]
    line = "Training a model: 100 tokens/s stock, 250 with our kernels"
    assert show.headline(Training("a model", runs), None) == f"{line}: 2.50x"
    assert show.headline(Training("a model", runs), "busy") == (
        f"{line}; the machine was busy, which makes their ratio noise"
    )
    few = [dataclasses.replace(run, losses=[2.0] * 29) for run in runs]
    assert show.headline(Training("a model", few), None) == line


def test_a_mixture_of_experts_is_trained(few_ops, tmp_path, monkeypatch, capsys):
    _quiet(monkeypatch)
    figures = tmp_path / "demo.json"
    options = ["--model", "mixtral", "--num-experts", "4", "--top-k", "2", "--d-model", "16",
               "--seq-len", "16", "--num-heads", "2", "--num-layers", "1"]  # fmt: skip
    assert _demo("-o", str(tmp_path / "report.html"), "--json", str(figures), *options) == 0
    assert "Mixtral, 1 layers, width 16" in capsys.readouterr().out
    stock, _, ours = schema.load(figures).training.runs
    assert all(abs(a - b) < 0.05 for a, b in zip(stock.losses, ours.losses, strict=True))


def test_training_ends_where_its_time_is_used_up(few_ops, tmp_path, monkeypatch, capsys):
    _quiet(monkeypatch)
    monkeypatch.setattr(demo, "_TRAIN_SECONDS", 0)
    options = ["--model", "language-model", "--d-model", "8", "--seq-len", "8", "--num-heads", "1"]
    assert _demo("-o", str(tmp_path / "report.html"), *options) == 0
    text = capsys.readouterr().out
    assert "The time for training was used up after 1 of 6 steps." in text


def test_the_example_is_the_command(monkeypatch):
    given = []
    monkeypatch.setattr(cli, "main", lambda arguments: given.append(arguments) or 3)
    monkeypatch.setattr(sys, "argv", ["run_demo.py", "--quick", "--plot"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "run_demo.py"), run_name="__main__")
    assert (ended.value.code, given) == (3, [["demo", "--quick", "--plot"]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--d-model", "30", "--num-heads", "4"], "--d-model is 30, expected a multiple of --num"),
        (["--steps", "0"], "--steps is 0, expected at least 1"),
        (["--batch-size", "-2"], "--batch-size is -2, expected at least 1"),
        (["--top-k", "2"], "--model is gpt2, expected mixtral"),
        (["--num-experts", "2", "--top-k", "3"], "--top-k is 3, expected at most --num-experts"),
    ],
)
def test_sizes_that_no_model_has_are_refused(arguments, message, capsys):
    assert _demo(*arguments) == 2
    assert message in capsys.readouterr().err


def test_headline_ops_come_first_and_none_that_nobody_calls():
    settings = demo._bench_settings(torch.device("cpu"), argparse.Namespace(quick=0, full=0))
    names = [op.name for op in settings.ops]
    assert names[: len(demo._FIRST)] == list(demo._FIRST)
    assert {op.name for op in cases.select([])} == set(names)
    problems = settings.problems()
    assert not any((p.op, p.pass_) == ("quantized_linear", "backward") for p in problems)
    assert len({p.shape for p in problems if p.op == "softmax"}) == 1


def test_gradients_are_clipped_to_the_recipe():
    model = torch.nn.Linear(4, 1)
    recipe = training.Recipe(1, 1.0, warm_up=1, clip=0.5)
    run = training.Run.begin(model, recipe, torch.device("cpu"))
    seen = []
    run.optimizer.register_step_pre_hook(
        lambda *_: seen.append([p.grad.clone() for p in model.parameters()])
    )
    run.step(lambda m, x: 100 * m(x).sum(), torch.ones(3, 4), torch.device("cpu"))
    norm = torch.cat([gradient.flatten() for gradient in seen[0]]).norm()
    assert float(norm) == pytest.approx(0.5, rel=1e-3)


def test_the_short_demo_says_where_a_step_goes(tmp_path, capsys):
    figures = tmp_path / "step.json"
    assert _demo("--profile", "--json", str(figures)) == 0
    assert "A STEP OF TRAINING" in capsys.readouterr().out
    result = schema.load(figures)
    assert {row.model for row in result.step_parts} == {"stock", "ours"}
    assert result.ceilings.copy_gbps > 0


def test_the_short_demo_races_whole_steps(tmp_path, monkeypatch, capsys):
    # Inductor's kernels, which take g++ half a minute, are not what is tested here.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    figures = tmp_path / "race.json"
    assert _demo("--race", "--json", str(figures)) == 0
    assert "STEPS OF TRAINING IN TURN" in capsys.readouterr().out
    rows = schema.load(figures).step_times
    assert [row.model for row in rows] == ["stock", "compiled", "ours"]
    for row in rows:
        assert 0 < row.p10_us <= row.median_us <= row.p90_us
        assert row.samples == 3
        assert row.peak_bytes > 1000
