# SPDX-License-Identifier: MIT
"""Trains on bytes of text, with the same batches in the same order for every model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench import training
from transformer_kernels.measure.schema import TrainingRun
from transformer_kernels.measure.statistics import quantile

_PROMPT = b"The "


@dataclass(frozen=True)
class Size:
    """The sizes that decide how long the demo takes."""

    layers: int
    width: int
    heads: int
    block: int
    batch: int
    steps: int
    learning_rate: float
    sample_bytes: int
    bench_seconds: float  # for timing all ops

    def __str__(self) -> str:
        return f"GPT-2, {self.layers} layers, width {self.width}, {self.heads} heads"


def train(models: dict[str, Any], size: Size, device: torch.device) -> list[TrainingRun]:
    """Trains the models side by side on windows of CPython's documentation."""
    recipe = training.Recipe(size.steps, size.learning_rate)
    runs = training.train(models, batches(size, device), loss_of, recipe, device)
    tokens = size.batch * size.block
    return [
        TrainingRun(name, run.losses, tokens / quantile(sorted(run.seconds), 0.5))
        for name, run in runs.items()
    ]


def batches(size: Size, device: torch.device) -> Iterator[Tensor]:
    text = training.windows(training.documentation(), size.block, size.batch)
    return (batch.to(device) for batch in text)


def loss_of(model: Any, batch: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=batch, labels=batch, use_cache=False).loss
    return loss


def generate(model: Any, size: Size, device: torch.device) -> str:
    """A sample of text that the model writes after a short prompt."""
    torch.manual_seed(0)
    prompt = torch.tensor([list(_PROMPT)], device=device)
    model.eval()
    written = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=min(size.sample_bytes, size.block - len(_PROMPT)),
        do_sample=True,
        temperature=0.7,
        top_k=40,
        pad_token_id=0,
    )
    return bytes(written[0].tolist()).decode("utf-8", errors="replace").replace("\0", "")
