# SPDX-License-Identifier: MIT
"""The training examples in their short form, and their shared code."""

from __future__ import annotations

import builtins
import dataclasses
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import ClassVar

import numpy
import pytest

from transformer_kernels.bench import models, tracking, training
from transformer_kernels.measure import schema
from transformer_kernels.measure.schema import Machine, ModelRun, Result

FOLDER = Path(__file__).parents[3] / "examples" / "python"
RUN = ModelRun("Model", "data", "torch", 1234, 60, 1.5, 4.0, 3.0, 5.0, 0.1, 0.96, 0.95)


def example(name: str):
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look for it there
    specification.loader.exec_module(module)
    return module


def stand_in(name: str) -> types.ModuleType:
    """A module with the attributes that importers look for."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return module


def few_digits() -> types.ModuleType:
    """Stands in for scikit-learn's digits, which the short form need not learn."""
    module = stand_in("sklearn.datasets")
    labels = numpy.arange(40) % 10
    images = numpy.random.default_rng(0).integers(0, 17, (40, 8, 8)).astype(float)
    module.load_digits = lambda: types.SimpleNamespace(images=images, target=labels)
    return module


@pytest.mark.parametrize(
    ("name", "runs"),
    [("train_language_model", 1), ("train_vision_transformer", 1), ("train_graph_network", 3)],
)
def test_the_short_form(name, runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", stand_in("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", few_digits())
    file = tmp_path / "models.json"
    assert example(name).main(["--quick", "--device", "cpu", "--json", str(file)]) == 0
    rows = schema.load(file).model_runs
    assert [row.kernels for row in rows] == ["torch", "ours"] * runs
    for stock, ours in zip(rows[::2], rows[1::2], strict=True):
        assert (stock.model, stock.steps, stock.parameters) == (
            ours.model, ours.steps, ours.parameters,
        )  # fmt: skip
        assert all(0 < row.step_p10_ms <= row.step_ms <= row.step_p90_ms for row in (stock, ours))
    assert "MODELS, TRAINED" in capsys.readouterr().out


class Kept:
    """Stands in for TensorBoard, and keeps what it is told."""

    figures: ClassVar[dict[str, list[tuple[int, list[str]]]]] = {}

    def __init__(self, _folder, _model, kernels):
        self.own = self.figures.setdefault(kernels, [])

    def log(self, figures, step):
        self.own.append((step, sorted(figures)))

    def close(self):
        self.own.append((0, ["closed"]))


def test_the_mixture_in_its_short_form(tmp_path, capsys, monkeypatch):
    """Both courses start with the same loss, are recorded, and are drawn."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(tracking, "TensorBoard", Kept)
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(Kept, "figures", {})
    file = tmp_path / "mixture.svg"
    module = example("train_mixture")
    arguments = ["--quick", "--device", "cpu", "--plot", str(file), "--log", str(tmp_path)]
    assert module.main(arguments) == 0
    each = ["load of the busiest expert", "loss"]
    last = [(6, ["loss on held-out text"]), (0, ["closed"])]
    course = [*((step, each) for step in range(1, 7)), *last]
    assert Kept.figures == {"balanced": course, "without a loss": course}
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == ["balanced", "without a loss"]
    assert "<svg" in file.read_text(encoding="utf-8")


def test_a_scikit_learn_that_is_missing_is_named(monkeypatch):
    imported = builtins.__import__

    def without(name, *arguments):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit, match="scikit-learn is missing, expected for its digits"):
        example("train_vision_transformer").main(["--quick"])


def result(*accuracies: float) -> Result:
    machine = Machine("cpu", "A CPU", "A CPU", 2, 8.0, "Linux")
    values = dict(zip(("torch", "ours"), accuracies, strict=True))
    rows = [
        ModelRun(**{**vars(RUN), "kernels": name, "accuracy": share, "step_ms": 4.0 / (1 + i)})
        for i, (name, share) in enumerate(values.items())
    ]
    return Result(1, "2026-01-02", machine, {}, {}, model_runs=rows)


def test_a_goal_that_is_missed_is_a_failure(tmp_path, capsys):
    file = tmp_path / "a.json"
    assert models.finish(result(0.96, 0.95), file) == 0
    assert schema.load(file) == result(0.96, 0.95)
    assert models.finish(result(0.94, 0.95), None) == 1
    text = capsys.readouterr().out
    assert "Model (torch): accuracy is 94.00 %, expected at least 95.00 %" in text
    assert "2.00x" in text  # the speed-up of the second line over the first


def test_too_few_steps_give_no_speed_up():
    assert training.speed_up(4.0, 2.0, training.LEAST_STEPS) == "2.00x"
    assert training.speed_up(4.0, 2.0, training.LEAST_STEPS - 1) == "-"
    few = result(0.96, 0.95)
    rows = [dataclasses.replace(row, steps=8) for row in few.model_runs]
    assert "2.00x" not in models.render(dataclasses.replace(few, model_runs=rows))


def test_a_rate_rises_and_falls():
    steady = training.Recipe(100, 1.0, warm_up=10)
    falling = training.Recipe(100, 1.0, warm_up=10, decays=True)
    assert [steady.factor(step) for step in (0, 4, 9, 99)] == [0.1, 0.5, 1.0, 1.0]
    assert falling.factor(50) == pytest.approx(0.5)
    assert falling.factor(99) < 0.001
