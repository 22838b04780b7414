# SPDX-License-Identifier: MIT
"""Runs the demo: the training, the ops and the page, or one of the other two measurements."""

from __future__ import annotations

import argparse
import dataclasses
import time
from functools import partial
from typing import Any

import torch
import transformers

from transformer_kernels.bench import cases, race, report, runner, step, summary
from transformer_kernels.bench.options import pick_device
from transformer_kernels.bench.training import Recipe
from transformer_kernels.demo.gpt2 import put_in_kernels
from transformer_kernels.demo.model import BYTES, TOKENS, stock_model
from transformer_kernels.demo.train import Size, batches, generate, loss_of, train
from transformer_kernels.measure import schema, sweeps, table
from transformer_kernels.measure.case import Case
from transformer_kernels.measure.schema import Training

_SEED = 0
_DROPOUT = 0.1  # GPT-2's
_CURVE_LINES = 12
# Compiling for a CPU would take longer than the rest of the demo.
_CPU_PROVIDERS = ("torch", "ours")
_GPU_PROVIDERS = ("torch", "compile", "triton", "ours")
_SIZES = {
    "cpu": Size(
        4, 192, 4, block=128, batch=8, steps=140, learning_rate=3e-3, sample_bytes=120,
        bench_seconds=60,
    ),
    "cuda": Size(
        12, 768, 12, block=512, batch=8, steps=200, learning_rate=6e-4, sample_bytes=300,
        bench_seconds=60,
    ),
}  # fmt: skip
_GPT2 = Size(
    12, 768, 12, block=1024, batch=16, steps=200, learning_rate=6e-4, sample_bytes=300,
    bench_seconds=60,
)  # fmt: skip
_QUICK = Size(
    2, 64, 2, block=64, batch=4, steps=6, learning_rate=3e-3, sample_bytes=24, bench_seconds=8
)


def run(arguments: argparse.Namespace) -> int:
    device = pick_device(arguments.device)
    size = _QUICK if arguments.quick else _SIZES[device.type]
    begin = time.perf_counter()
    transformers.logging.set_verbosity_error()

    if arguments.profile or arguments.race:
        return _measure_step(size, device, arguments)
    training = _train_all(size, device)
    print(_outcome(training, size))
    print(_curves(training))
    print(f"\nWhat the model writes after {size.steps} steps:\n{training.sample}\n")

    settings = _bench_settings(device, size, arguments.quick)
    result = dataclasses.replace(runner.run(settings), training=training)
    if (means := summary.render(result)) is not None:
        print(f"{means}\n")
    print(table.render(result))
    for line in table.skipped_lines(result):
        print(line)
    report.write(result, arguments.output)
    if arguments.json:
        schema.save(result, arguments.json)
    print(f"\nwrote {arguments.output} after {time.perf_counter() - begin:.0f} s")
    return 0


def _fresh(size: Size, vocabulary: int = BYTES) -> Any:
    dims = (size.layers, size.width, size.heads, size.block)
    return stock_model(*dims, _SEED, _DROPOUT, vocabulary)


def _train_all(size: Size, device: torch.device) -> Training:
    """Trains stock twice, because dropout draws anew for each model: that shows its effect on the
    loss."""
    print(f"{size}; bytes of the Python documentation, {size.batch}x{size.block} a step")
    ours = put_in_kernels(_fresh(size))
    models = {"stock": _fresh(size), "stock again": _fresh(size), "ours": ours}
    runs = train(models, size, device)
    return Training(str(size), runs, generate(ours, size, device))


def _outcome(training: Training, size: Size) -> str:
    """A table of what the kernels change in the whole step: time, speed and loss."""
    stock = training.stock
    headings = [("Model", 12), ("ms a step", 9), ("tokens/s", 8), ("speed-up", 8), ("loss", 7),
                ("to stock's", 10)]  # fmt: skip
    tokens = size.batch * size.block
    body = [
        [
            run.name,
            f"{1e3 * tokens / run.tokens_per_second:.1f}",
            f"{run.tokens_per_second:.0f}",
            f"{run.tokens_per_second / stock.tokens_per_second:.2f}x",
            f"{run.final_loss:.4f}",
            f"{run.final_loss - stock.final_loss:+.4f}",
        ]
        for run in training.runs
    ]
    subtitle = (
        "median step, all in turn; loss: mean of the last quarter, each with masks of its own"
    )
    return table.box("SPEED-UP OF THE MODEL", subtitle, headings, body)


def _curves(training: Training) -> str:
    """The loss curves side by side at evenly spaced steps, and their distance from stock."""
    stock, *others = training.runs
    last = len(stock.losses) - 1
    lines = min(_CURVE_LINES, last + 1)
    shown = sorted({round(i * last / max(lines - 1, 1)) for i in range(lines)})
    body = [[f"step {i + 1}", f"{stock.losses[i]:.4f}"] for i in shown]
    headings = [("", 12), (stock.name, 10)]
    for run in others:
        headings += [(run.name, 10), ("difference", 10)]
        differences = training.differences(run)
        for line, i in zip(body, shown, strict=True):
            line += [f"{run.losses[i]:.4f}", f"{differences[i]:+.4f}"]
    return table.box("TRAINING LOSS", f"dropout {_DROPOUT:g}", headings, body)


def _measure_step(size: Size, device: torch.device, parsed: argparse.Namespace) -> int:
    """Times steps of the model of that size. A GPU, except in the short form, gets GPT-2's 124
    million parameters and autocast, as it is trained."""
    if device.type == "cuda" and not parsed.quick:
        size = _GPT2
        model, fresh = f"{size} and its vocabulary", partial(_fresh, size, TOKENS)
        torch.manual_seed(_SEED)
        batch = torch.randint(TOKENS, (size.batch, size.block), device=device)
    else:
        model, fresh = str(size), partial(_fresh, size)
        batch = next(batches(size, device))
    compiled = {"compiled": torch.compile(fresh())} if parsed.race else {}
    task = step.Task(
        models={"stock": fresh(), **compiled, "ours": put_in_kernels(fresh())},
        batch=batch,
        loss_of=loss_of,
        recipe=Recipe(size.steps, size.learning_rate),
        tokens=size.block,
    )
    settings = {
        "model": model, "batch": f"batch {size.batch}x{size.block}",
        "dropout": f"dropout {_DROPOUT:g}",
    }  # fmt: skip
    if device.type == "cuda":
        settings["dtype"] = "bfloat16 autocast"
    else:
        settings["threads"] = f"{torch.get_num_threads()} threads"
    kind = race if parsed.race else step
    result = dataclasses.replace(
        kind.measure(task, device, 3 if parsed.quick else 25), settings=settings
    )
    print(kind.render(result))
    if parsed.json is not None:
        schema.save(result, parsed.json)
    return 0


def _bench_settings(device: torch.device, size: Size, quick: bool) -> runner.Settings:
    on_gpu = device.type == "cuda"
    dtypes = (torch.float32,) if quick else (torch.float32, torch.bfloat16)

    def shapes(op: Case, _: torch.dtype) -> list[sweeps.Shape]:
        found = op.grid.shapes_of(["quick"], device, torch.float32)
        return found[:1] if quick else found

    return runner.Settings(
        ops=cases.select([]),
        passes=("forward", "backward"),
        dtypes=dtypes,
        shapes=shapes,
        device=device,
        providers=_GPU_PROVIDERS if on_gpu else _CPU_PROVIDERS,
        seconds=0.2,
        budget_seconds=size.bench_seconds,
        find_kernels=False,
    )
