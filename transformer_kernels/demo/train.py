# SPDX-License-Identifier: MIT
"""Trains on bytes of text, with the same batches in the same order for every model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench import training
from transformer_kernels.demo.kinds import Kind
from transformer_kernels.demo.size import BYTES, Size
from transformer_kernels.measure.schema import TrainingRun
from transformer_kernels.measure.statistics import quantile

# Gradients grow tenfold in some of the first steps; without a limit the loss jumps with them.
CLIP = 1.0


def train(
    models: dict[str, Any],
    size: Size,
    device: torch.device,
    loss_of: Callable[[Any, Tensor], Tensor],
    seconds: float = math.inf,
) -> list[TrainingRun]:
    """Trains the models side by side on windows of CPython's documentation, for that long at
    most."""
    recipe = training.Recipe(size.steps, size.learning_rate, clip=CLIP)

    def describe(run: training.Run) -> str:
        return f"{_tokens_per_second(run, size):,.0f} tokens/s, loss {run.losses[-1]:.3f}"

    runs = training.train(models, batches(size, device), loss_of, recipe, device, describe, seconds)
    return [
        TrainingRun(name, run.losses, _tokens_per_second(run, size)) for name, run in runs.items()
    ]


def _tokens_per_second(run: training.Run, size: Size) -> float:
    return size.batch * size.block / quantile(sorted(run.seconds), 0.5)


def batches(size: Size, device: torch.device) -> Iterator[Tensor]:
    text = training.windows(training.documentation(), size.block, size.batch)
    return (batch.to(device) for batch in text)


@dataclass(frozen=True)
class Agreement:
    """How the weights that our kernels trained do in the stock model."""

    same: int  # next tokens on which both agree
    tokens: int
    difference: float  # the largest of the logits, relative to the largest logit


@torch.no_grad()
def agreement(ours: Any, kind: Kind, size: Size, device: torch.device) -> Agreement:
    """Loads the weights of ``ours`` into a stock model, and compares both on one batch."""
    stock = kind.build(size, BYTES).to(device)
    stock.load_state_dict(ours.state_dict())
    batch = next(batches(size, device))
    found, expected = (kind.logits_of(model.eval(), batch).float() for model in (ours, stock))
    return Agreement(
        same=int((found.argmax(-1) == expected.argmax(-1)).sum()),
        tokens=batch.numel(),
        difference=float((found - expected).abs().max() / expected.abs().max()),
    )
