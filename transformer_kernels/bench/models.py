# SPDX-License-Identifier: MIT
"""Trains models of :mod:`transformer_kernels.models` on both settings of their switch, side by
side.

The training examples share this code: a task, its run, the table and the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_kernels.bench import tracking, training
from transformer_kernels.measure import machine, schema, table
from transformer_kernels.measure.schema import ModelRun, Result
from transformer_kernels.measure.statistics import quantile

SWITCHES = ("torch", "ours")


@dataclass(frozen=True)
class Task:
    """A model, the data that it learns, and the accuracy that it has to reach."""

    model: str
    data: str
    build: Callable[[str], nn.Module]  # takes the setting of the switch
    batches: Callable[[], Iterable[Any]]
    loss_of: Callable[[Any, Any], Tensor]
    accuracy_of: Callable[[Any], float]  # on held-out data
    recipe: training.Recipe
    goal: float | None = None


@dataclass(frozen=True)
class Trained:
    model: Any  # in evaluation
    row: ModelRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--kernels", nargs="+", choices=SWITCHES, default=list(SWITCHES))
    parser.add_argument("--quick", action="store_true", help="a few steps, for CI")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    tracking.add_argument(parser)


def run(
    task: Task,
    kernels: Sequence[str],
    device: torch.device,
    seed: int = 0,
    log: Path | None = None,
) -> dict[str, Trained]:
    """Trains each setting of the switch, in turns, from the same weights, and measures its
    accuracy. The folder ``log`` gets the records of :mod:`transformer_kernels.bench.tracking`."""
    models = {}
    for name in kernels:
        torch.manual_seed(seed)
        models[name] = task.build(name)
    with tracking.records(log, task.model, list(models)) as records:
        runs = training.train(
            models, task.batches(), task.loss_of, task.recipe, device, after_step=records.step
        )
        trained = {name: Trained(run.model, _row(task, name, run)) for name, run in runs.items()}
        for name, one in trained.items():
            records.accuracy(name, one.row.accuracy, one.row.steps)
    return trained


def _row(task: Task, kernels: str, run: training.Run) -> ModelRun:
    run.model.eval()
    with torch.no_grad():
        accuracy = task.accuracy_of(run.model)
    times = sorted(1e3 * seconds for seconds in run.seconds)
    median, p10, p90 = (quantile(times, at) for at in (0.5, 0.1, 0.9))
    return ModelRun(
        task.model, task.data, kernels, sum(p.numel() for p in run.model.parameters()),
        len(run.losses), sum(run.seconds), median, p10, p90, run.losses[-1], accuracy, task.goal,
    )  # fmt: skip


def result_of(trained: Iterable[Mapping[str, Trained]], device: torch.device) -> Result:
    rows = [each.row for models in trained for each in models.values()]
    return machine.new_result(device, settings={}, model_runs=rows)


def finish(result: Result, path: Path | None) -> int:
    """Prints and stores the figures; returns 1, with a message, if a goal was not reached."""
    print(render(result))
    if path is not None:
        schema.save(result, path)
    missed = [row for row in result.model_runs if row.goal is not None and row.accuracy < row.goal]
    for row in missed:
        print(
            f"{row.model} ({row.kernels}): accuracy is {_percent(row.accuracy)}, expected at least"
            f" {_percent(row.goal)}"
        )
    return 1 if missed else 0


_HEADINGS = [
    ("model", 24), ("data", 24), ("kernels", 7), ("parameters", 10), ("steps", 5), ("seconds", 7),
    ("ms a step", 9), ("speed-up", 8), ("loss", 6), ("accuracy", 8), ("goal", 6),
]  # fmt: skip


def render(result: Result) -> str:
    """A line for each setting; speed-ups compare the median step with stock PyTorch's."""
    stock = {(row.model, row.data): row for row in result.model_runs if row.kernels == "torch"}
    body = [_cells(row, stock.get((row.model, row.data))) for row in result.model_runs]
    subtitle = "the switches take turns, step by step; accuracy on data not trained on"
    return table.box(f"MODELS, TRAINED ({result.machine.device_name})", subtitle, _HEADINGS, body)


def _cells(row: ModelRun, stock: ModelRun | None) -> list[str]:
    compared = stock is not None and stock is not row
    return [
        row.model, row.data, row.kernels, f"{row.parameters:,}", str(row.steps),
        f"{row.seconds:.1f}", f"{row.step_ms:.2f}",
        training.speed_up(stock.step_ms, row.step_ms, row.steps)
        if stock and compared else table.ABSENT,
        f"{row.loss:.3f}", _percent(row.accuracy), _percent(row.goal),
    ]  # fmt: skip


def _percent(share: float | None) -> str:
    return table.ABSENT if share is None else f"{100 * share:.2f} %"
