# SPDX-License-Identifier: MIT
"""Records training runs for TensorBoard and, where it is installed, for Weights & Biases.

``make tensorboard`` shows the folder ``runs``. Weights & Biases keeps its records there as well and
sends nothing, unless the variable ``WANDB_MODE`` says otherwise; ``wandb sync`` sends them later.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from transformer_kernels.bench.training import Run

PROJECT = "transformer-kernels"


class Tracker(Protocol):
    """One of the programs that keep a run's figures."""

    def log(self, figures: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, model: str, kernels: str) -> None:
        try:
            found = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise SystemExit(
                "--log: the package tensorboard is missing:"
                " pip install 'transformer-kernels[profile]'"
            ) from None
        self._writer: Any = found.SummaryWriter(str(folder / f"{_file_name(model)}-{kernels}"))

    def log(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    def __init__(self, folder: Path, model: str, kernels: str) -> None:
        wandb = importlib.import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=PROJECT, group=model, name=f"{model}, {kernels}", dir=str(folder),
            config={"model": model, "kernels": kernels}, reinit="create_new",
            mode=os.environ.get("WANDB_MODE", "offline"),
        )  # fmt: skip

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


@dataclass
class Records:
    """The trackers of one model, by the setting of its switch."""

    trackers: Mapping[str, list[Tracker]] = field(default_factory=dict)

    def step(self, kernels: str, run: Run) -> None:
        """Records the last step of a run."""
        figures = {
            "loss": run.losses[-1],
            "ms a step": 1e3 * run.seconds[-1],
            "learning rate": float(run.schedule.get_last_lr()[0]),
        }
        self.log(kernels, figures, len(run.losses))

    def accuracy(self, kernels: str, accuracy: float, step: int) -> None:
        self.log(kernels, {"accuracy": accuracy}, step)

    def log(self, kernels: str, figures: Mapping[str, float], step: int) -> None:
        """Records figures of a program's own."""
        for tracker in self.trackers.get(kernels, ()):
            tracker.log(figures, step)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--log``, whose folder is for :func:`records`."""
    parser.add_argument(
        "--log", type=Path, metavar="FOLDER",
        help="record the steps for TensorBoard, and for Weights & Biases where it is installed",
    )  # fmt: skip


@contextlib.contextmanager
def records(folder: Path | None, model: str, switches: list[str]) -> Iterator[Records]:
    """Opens the trackers of a model, one set for each setting of its switch; none without a folder.

    >>> with records(None, "GPT-2", ["torch", "ours"]) as kept:
    ...     kept.accuracy("ours", 0.5, step=1)
    """
    if folder is None:
        yield Records()
        return
    kinds: list[Any] = [TensorBoard]
    if importlib.util.find_spec("wandb") is not None:
        kinds.append(WeightsAndBiases)
    with ExitStack() as opened:
        trackers: dict[str, list[Tracker]] = {name: [] for name in switches}
        for name, own in trackers.items():
            for kind in kinds:
                own.append(kind(folder, model, name))
                opened.callback(own[-1].close)
        yield Records(trackers)


def _file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-")
