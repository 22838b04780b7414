# SPDX-License-Identifier: MIT
"""Shows where the time and the memory of a model go, and finds a leak with a profiler."""

import torch
from torch import nn

import transformer_kernels as tfk

BATCH, TIME, CHANNELS = 4, 64, 128


def inference(model: nn.Module, x: torch.Tensor) -> None:
    """Reports a forward pass: its time, memory, modules, kernels and our ops."""
    print(tfk.profile.profile_model_inference(model, x, seconds=0.1))


def training(model: nn.Module, x: torch.Tensor, steps: int = 5) -> None:
    """Times sections of a training step; a CPU's wall clock has to be asked for."""
    optimizer = torch.optim.AdamW(model.parameters())
    profiler = tfk.profile.GPUProfiler(x.device)
    with profiler:
        for _ in range(steps):
            with profiler.section("forward"):
                loss = model(x).square().mean()
            with profiler.section("backward"):
                loss.backward()
            with profiler.section("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    print(profiler.report)


def leak(model: nn.Module, x: torch.Tensor, steps: int = 5) -> None:
    """Leaks memory as a program does that forgets ``.item()``: losses keep their graphs."""
    losses = []
    with tfk.profile.MemoryProfiler(x.device) as profiler:
        for _ in range(steps):
            losses.append(model(x).square().mean())
            profiler.step()
    print(profiler.report.text(rows=5))


def comparison(x: torch.Tensor) -> None:
    """Compares softmax functions. They are verified first, so one over the wrong dimension is not
    timed."""
    print(
        tfk.profile.compare_implementations(
            {
                "torch": lambda x: torch.softmax(x, -1),
                "ours": lambda x: tfk.functional.softmax(x, -1),
                "wrong": lambda x: torch.softmax(x, 0),
            },
            x.flatten(0, 1),
            seconds=0.1,
        )
    )


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        tfk.nn.LayerNorm(CHANNELS),
        nn.Linear(CHANNELS, 4 * CHANNELS),
        tfk.nn.GELU(),
        nn.Linear(4 * CHANNELS, CHANNELS),
    ).to(device)
    x = torch.randn(BATCH, TIME, CHANNELS, device=device)
    inference(model, x)
    training(model, x)
    leak(model, x)
    comparison(x)


if __name__ == "__main__":
    main()
