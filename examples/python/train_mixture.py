# SPDX-License-Identifier: MIT
"""Trains a small mixture of experts, a language model of bytes on CPython's documentation, twice
from the same weights: with a loss that balances the load of the experts, and without.

It prints the loss on held-out text and the load of the busiest expert, 1 where the load is even,
and draws the course of both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels.bench import tracking, training
from transformer_kernels.bench.options import pick_device

VOCABULARY, HELD_OUT = 256, 0.1


@dataclass(frozen=True)
class Size:
    layers: int = 3
    width: int = 128
    heads: int = 4
    features: int = 128  # of an expert
    experts: int = 16
    top_k: int = 2
    context: int = 128
    batch: int = 8
    steps: int = 400


QUICK = Size(layers=2, width=32, heads=2, features=16, experts=4, context=32, batch=4, steps=6)


class Block(nn.Module):
    def __init__(self, size: Size, aux_loss: float) -> None:
        super().__init__()
        self.norm_1 = tfk.nn.RMSNorm(size.width)
        self.attention = tfk.nn.CausalSelfAttention(size.width, size.heads)
        self.norm_2 = tfk.nn.RMSNorm(size.width)
        self.moe = tfk.nn.MoE(
            size.width, size.features, size.experts, size.top_k,
            balancer=tfk.nn.LoadBalancer(size.experts, aux_loss=aux_loss),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.moe(self.norm_2(x))


class Mixture(nn.Module):
    """A decoder whose MLPs are mixtures of experts."""

    def __init__(self, size: Size, aux_loss: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size, aux_loss) for _ in range(size.layers))
        self.norm = tfk.nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def mixtures(self) -> list[tfk.nn.MoE]:
        return [block.moe for block in self.blocks]


@dataclass
class Course:
    """The numbers of a training run, one a step."""

    losses: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # of the busiest expert, over the layers
    held_out: float = 0.0


Record = Callable[[dict[str, float], int], None]  # of figures, at a step


def loss_of(model: Mixture, window: Tensor) -> Tensor:
    """The loss of the next byte."""
    return tfk.functional.cross_entropy(
        model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten()
    )


def train(
    size: Size, aux_loss: float, text: Tensor, device: torch.device, record: Record
) -> Course:
    known = len(text) - int(HELD_OUT * len(text))
    torch.manual_seed(0)
    model = Mixture(size, aux_loss).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.99), weight_decay=0.1)
    course = Course()
    batches = training.windows(text[:known], size.context + 1, size.batch)
    for step, window in zip(range(1, size.steps + 1), batches, strict=False):
        loss = loss_of(model, window.to(device))
        optimizer.zero_grad()
        (loss + sum(moe.loss for moe in model.mixtures())).backward()
        optimizer.step()
        course.losses.append(float(loss.detach()))
        loads = [float(moe.balancer.metrics()["max_load"]) for moe in model.mixtures()]
        course.loads.append(max(loads))
        record({"loss": course.losses[-1], "load of the busiest expert": max(loads)}, step)
    model.eval()
    with torch.no_grad():
        some = training.windows(text[known:], size.context + 1, size.batch, seed=2)
        held_out = [loss_of(model, next(some).to(device)) for _ in range(16)]
    course.held_out = float(torch.stack(held_out).mean())
    record({"loss on held-out text": course.held_out}, size.steps)
    return course


def draw(courses: dict[str, Course], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, course in courses.items():
        left.plot(course.losses, label=name)
        right.plot(course.loads, label=name)
    left.set(xlabel="step", ylabel="loss", title="Loss of the next byte")
    right.set(xlabel="step", title="Load of the busiest expert (1: even)")
    left.legend(frameon=False)
    figure.savefig(file)
    print(f"wrote {file}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps of a tiny model")
    parser.add_argument("--device", help="by default the GPU, where there is one")
    parser.add_argument("--aux-loss", type=float, default=0.02, help="factor of the loss")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both courses (matplotlib)")
    tracking.add_argument(parser)
    parsed = parser.parse_args(arguments)
    device, size = pick_device(parsed.device), QUICK if parsed.quick else Size()
    text = training.documentation()
    courses = {}
    losses = {"balanced": parsed.aux_loss, "without a loss": 0.0}
    with tracking.records(parsed.log, "mixture of experts", list(losses)) as records:
        for name, aux_loss in losses.items():
            record = partial(records.log, name)
            courses[name] = course = train(size, aux_loss, text, device, record)
            print(
                f"{name}: loss {course.losses[-1]:.3f}, on held-out text {course.held_out:.3f};"
                f" the busiest of {size.experts} experts has {course.loads[-1]:.1f} times its share"
            )
    if parsed.plot:
        draw(courses, parsed.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
