# SPDX-License-Identifier: MIT
"""Training on bytes of text, the same batches in the same order for every model."""

from __future__ import annotations

import contextlib
import pydoc_data.topics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench.console import Progress
from transformer_kernels.bench.schema import TrainingRun
from transformer_kernels.bench.stats import quantile

_WARM_UP_STEPS = 20
_BETAS = (0.9, 0.99)
_WEIGHT_DECAY = 0.1
_PROMPT = b"The "


@dataclass(frozen=True)
class Size:
    """Everything that decides how long the demo takes."""

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


def documentation() -> Tensor:
    """The documentation text that CPython carries, as bytes."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def train(models: dict[str, Any], size: Size, device: torch.device) -> list[TrainingRun]:
    """Trains the models in turn, step by step, so that a drift of the machine falls on all."""
    runs = {name: _Run(model, size.learning_rate, device) for name, model in models.items()}
    with Progress("training", size.steps) as progress:
        for batch in _batches(size, device):
            for run in runs.values():
                run.step(batch)
            losses = ", ".join(f"{name} {run.losses[-1]:.4f}" for name, run in runs.items())
            progress.advance(f"loss: {losses}")
    tokens = size.batch * size.block
    return [
        TrainingRun(name, run.losses, tokens / quantile(sorted(run.seconds), 0.5))
        for name, run in runs.items()
    ]


def generate(model: Any, size: Size, device: torch.device) -> str:
    """A sample of what the model writes, from a short prompt."""
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


def _batches(size: Size, device: torch.device) -> Iterator[Tensor]:
    text = documentation()
    generator = torch.Generator().manual_seed(1)
    for _ in range(size.steps):
        starts = torch.randint(len(text) - size.block, (size.batch,), generator=generator)
        rows = [text[start : start + size.block] for start in starts.tolist()]
        yield torch.stack(rows).to(device)


class _Run:
    def __init__(self, model: Any, learning_rate: float, device: torch.device) -> None:
        self._model = model.to(device).train()
        self._device = device
        self._optimizer = torch.optim.AdamW(
            model.parameters(), learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min(1, (step + 1) / _WARM_UP_STEPS)
        )
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Tensor) -> None:
        """Reading the loss waits for the device."""
        begin = time.perf_counter()
        with _precision(self._device):
            loss = self._model(input_ids=batch, labels=batch, use_cache=False).loss
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._schedule.step()
        self.losses.append(float(loss.detach()))
        self.seconds.append(time.perf_counter() - begin)


def _precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 by autocast on a GPU, float32 on a CPU."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()
