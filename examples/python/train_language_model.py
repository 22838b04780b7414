# SPDX-License-Identifier: MIT
"""Trains a language model of bytes on CPython's documentation, with PyTorch and with our kernels.

Both start with the same weights and see the same text, of which the last tenth is held out. Then
the model writes, with and without its cache of keys and values.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_kernels.bench import models, training
from transformer_kernels.bench.options import pick_device
from transformer_kernels.models import LanguageModel, LanguageModelConfig

GPT2 = LanguageModelConfig(vocab_size=256, context=128, dim=192, num_layers=4, num_heads=4)
LLAMA = LanguageModelConfig(
    vocab_size=256, context=128, dim=192, num_layers=4, num_heads=4, num_kv_heads=2, inner_dim=512,
    norm="rms_norm", activation="swiglu", positions="rope", bias=False,
)  # fmt: skip
QUICK = LanguageModelConfig(vocab_size=256, context=32, dim=32, num_layers=2, num_heads=2)
CONFIGS = {"llama": (LLAMA, 0.58), "gpt2": (GPT2, 0.4)}  # configuration, and the accuracy to reach
HELD_OUT = 0.1
PROMPT = b"The "


def task_of(name: str, quick: bool, device: torch.device) -> models.Task:
    config, goal = (QUICK, None) if quick else CONFIGS[name]
    text = training.documentation()
    known = len(text) - int(HELD_OUT * len(text))
    steps, batch = (8, 4) if quick else (600, 8)
    return models.Task(
        model=f"LanguageModel, {name}, {config.num_layers} layers, width {config.dim}",
        data="CPython's documentation",
        build=functools.partial(LanguageModel, config),
        batches=lambda: (
            window.to(device)
            for window in training.windows(text[:known], config.context + 1, batch)
        ),
        loss_of=next_byte_loss,
        accuracy_of=functools.partial(
            next_byte_accuracy, text=text[known:], windows=4 if quick else 128
        ),
        recipe=training.Recipe(steps, learning_rate=3e-3, decays=True),
        goal=goal,
    )


def next_byte_loss(model: LanguageModel, window: Tensor) -> Tensor:
    return model(window[:, :-1], window[:, 1:])


def next_byte_accuracy(model: LanguageModel, text: Tensor, windows: int) -> float:
    """How often the likeliest byte is the next one, in evenly spaced windows."""
    length = model.config.context + 1
    starts = torch.linspace(0, len(text) - length, windows).long().tolist()
    device = model.tokens.weight.device
    rows = torch.stack([text[start : start + length] for start in starts]).to(device)
    found = torch.cat([model(part[:, :-1]).argmax(-1) for part in rows.split(16)])
    return float((found == rows[:, 1:]).double().mean())


def write(model: LanguageModel, use_cache: bool) -> tuple[str, float]:
    """The bytes that follow the prompt, up to the end of the context, and the bytes per second."""
    device = model.tokens.weight.device
    prompt = torch.tensor([list(PROMPT)], device=device)
    count = model.config.context - len(PROMPT)
    generator = torch.Generator(device).manual_seed(0)
    begin = time.perf_counter()
    written = model.generate(
        prompt, count, temperature=0.7, top_k=40, top_p=0.95, generator=generator,
        use_cache=use_cache,
    )  # fmt: skip
    text = bytes(written[0].tolist()).decode("utf-8", errors="replace")
    return text, count / (time.perf_counter() - begin)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=CONFIGS, default="llama")
    models.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    device = pick_device(parsed.device)
    task = task_of(parsed.config, parsed.quick, device)
    trained = models.run(task, parsed.kernels, device, log=parsed.log)
    for name, one in trained.items():
        text, fast = write(one.model, use_cache=True)
        _, slow = write(one.model, use_cache=False)
        print(f"\n{name} writes {fast:.0f} bytes/s, without a cache {slow:.0f}:\n{text}\n")
    return models.finish(models.result_of([trained], device), parsed.json)


if __name__ == "__main__":
    sys.exit(main())
