# SPDX-License-Identifier: MIT
"""Trains several models side by side on the same batches, in turn at each step, so that a drift of
the machine affects all of them."""

from __future__ import annotations

import contextlib
import math
import pydoc_data.topics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from transformer_kernels.bench.console import Progress
from transformer_kernels.measure.table import ABSENT

T = TypeVar("T")
LEAST_STEPS = 30  # the times of fewer say nothing about a speed-up


@dataclass(frozen=True)
class Recipe:
    """Settings of AdamW. The rate rises over the first steps, then may fall to 0 along a cosine.

    Where ``clip`` is given, gradients are scaled down to that norm. Where ``trains`` is off, a step
    is a forward pass in evaluation mode, without gradients.
    """

    steps: int
    learning_rate: float
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    warm_up: int = 20
    decays: bool = False
    clip: float | None = None
    trains: bool = True
    autocast: bool = True  # to bfloat16 on a GPU; else the dtype of the parameters is computed in

    def factor(self, step: int) -> float:
        risen = min(1.0, (step + 1) / self.warm_up)
        return risen * (0.5 + 0.5 * math.cos(math.pi * step / self.steps) if self.decays else 1.0)


@dataclass
class Run:
    """The steps of one model."""

    model: Any
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    recipe: Recipe
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each step

    @classmethod
    def begin(cls, model: Any, recipe: Recipe, device: torch.device) -> Run:
        model.to(device).train(recipe.trains)
        optimizer = torch.optim.AdamW(
            model.parameters(), recipe.learning_rate, recipe.betas,
            weight_decay=recipe.weight_decay, fused=True,
        )  # fmt: skip
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.factor)
        return cls(model, optimizer, schedule, recipe)

    def step(self, loss_of: Callable[[Any, T], Tensor], batch: T, device: torch.device) -> None:
        """Takes one step with a batch. Reading the loss waits for the device."""
        begin = time.perf_counter()
        if self.recipe.trains:
            loss = self.gradients(loss_of, batch, device)
            self.update()
        else:
            with torch.inference_mode():
                loss = self._loss(loss_of, batch, device)
        self.losses.append(float(loss))
        self.seconds.append(time.perf_counter() - begin)

    def gradients(
        self, loss_of: Callable[[Any, T], Tensor], batch: T, device: torch.device
    ) -> Tensor:
        """Computes the gradients of the batch, replacing earlier ones; returns the loss."""
        loss = self._loss(loss_of, batch, device)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.schedule.step()

    def _loss(self, loss_of: Callable[[Any, T], Tensor], batch: T, device: torch.device) -> Tensor:
        with _precision(device) if self.recipe.autocast else contextlib.nullcontext():
            return loss_of(self.model, batch)


def train(
    models: Mapping[str, Any],
    batches: Iterable[T],
    loss_of: Callable[[Any, T], Tensor],
    recipe: Recipe,
    device: torch.device,
    describe: Callable[[Run], str] = lambda run: f"loss {run.losses[-1]:.4f}",
    seconds: float = math.inf,
    after_step: Callable[[str, Run], None] | None = None,
) -> dict[str, Run]:
    """Gives ``recipe.steps`` batches to the models, each to every model before the next.

    Calls ``after_step`` with a model's name and run after each of its steps, outside of the timing.
    Ends earlier where that many seconds have passed; each model has taken as many steps.
    """
    deadline = time.monotonic() + seconds
    runs = {name: Run.begin(model, recipe, device) for name, model in models.items()}
    with Progress("training", recipe.steps) as progress:
        for _, batch in zip(range(recipe.steps), batches, strict=False):
            for name, run in runs.items():
                run.step(loss_of, batch, device)
                if after_step is not None:
                    after_step(name, run)
            progress.advance("; ".join(f"{name} {describe(run)}" for name, run in runs.items()))
            if time.monotonic() > deadline:
                break
    return runs


def speed_up(stock_seconds: float, seconds: float, steps: int) -> str:
    """How much faster a step is than stock's, in words; absent where too few were timed."""
    return f"{stock_seconds / seconds:.2f}x" if steps >= LEAST_STEPS else ABSENT


def documentation() -> Tensor:
    """The documentation text in CPython's standard library, as bytes."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def windows(text: Tensor, length: int, batch: int, seed: int = 1) -> Iterator[Tensor]:
    """Yields (batch, length) windows of the text without end, at places drawn by the seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - length, (batch,), generator=generator)
        yield torch.stack([text[start : start + length] for start in starts.tolist()])


def _precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 by autocast on a GPU, float32 on a CPU."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()
