# SPDX-License-Identifier: MIT
"""Training runs are recorded for TensorBoard, and offline for Weights & Biases."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from transformer_kernels.bench import models, tracking, training


def task(steps: int = 3) -> models.Task:
    batch = torch.randn(4, 8)
    return models.Task(
        model="Line, width 8", data="noise", build=lambda _: torch.nn.Linear(8, 8),
        batches=lambda: iter([batch] * steps),
        loss_of=lambda model, x: (model(x) - x).square().mean(),
        accuracy_of=lambda _: 0.5, recipe=training.Recipe(steps, 1e-3),
    )  # fmt: skip


def without(monkeypatch, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        tracking.importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )


def test_every_step_goes_to_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    without(monkeypatch, "wandb")
    trained = models.run(task(), ["torch", "ours"], torch.device("cpu"), log=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "Line-width-8-ours", "Line-width-8-torch",
    ]  # fmt: skip
    for name, one in trained.items():
        kept = EventAccumulator(str(tmp_path / f"Line-width-8-{name}")).Reload()
        losses = kept.Scalars("loss")
        assert [event.step for event in losses] == [1, 2, 3]
        assert losses[-1].value == pytest.approx(one.row.loss, rel=1e-6)
        assert all(event.value > 0 for event in kept.Scalars("ms a step"))
        assert [event.value for event in kept.Scalars("accuracy")] == [0.5]


def test_weights_and_biases_keeps_a_run_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(tracking, "TensorBoard", tracking.WeightsAndBiases)
    without(monkeypatch, "wandb")
    models.run(task(), ["ours"], torch.device("cpu"), log=tmp_path)
    wandb.teardown()  # its process writes what it still holds, as at the end of a program
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    text = kept.read_bytes()
    assert all(name in text for name in (b"loss", b"ms a step", b"accuracy", b"Line, width 8"))


def test_a_tensorboard_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit, match="the package tensorboard is missing: pip install"):
        models.run(task(), ["ours"], torch.device("cpu"), log=tmp_path)


def test_without_a_folder_nothing_is_opened(monkeypatch):
    monkeypatch.setattr(tracking, "TensorBoard", lambda *_: pytest.fail("a tracker was opened"))
    trained = models.run(task(), ["ours"], torch.device("cpu"))
    assert trained["ours"].row.steps == 3
