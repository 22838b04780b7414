# SPDX-License-Identifier: MIT
from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from transformer_kernels.bench import cases, report, runner, schema, summary, sweeps, table
from transformer_kernels.bench.case import Op
from transformer_kernels.bench.commands import pick_device
from transformer_kernels.bench.schema import Training
from transformer_kernels.demo.model import (
    fused_attention,
    put_in_kernels,
    softmax_attention,
    stock_model,
)
from transformer_kernels.demo.train import Size, generate, train

_SEED = 0
_CURVE_LINES = 12
# Compiling for a CPU takes longer than everything else here together.
_CPU_PROVIDERS = ("torch", "ours")
_GPU_PROVIDERS = ("torch", "compile", "triton", "ours")
_SIZES = {
    "cpu": Size(
        4, 192, 4, block=128, batch=8, steps=160, learning_rate=3e-3, sample_bytes=120,
        bench_seconds=60,
    ),
    "cuda": Size(
        12, 768, 12, block=512, batch=8, steps=200, learning_rate=6e-4, sample_bytes=300,
        bench_seconds=60,
    ),
}  # fmt: skip
_QUICK = Size(
    2, 64, 2, block=64, batch=4, steps=6, learning_rate=3e-3, sample_bytes=24, bench_seconds=8
)


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parse(arguments)
    device = pick_device(parsed.device)
    size = _QUICK if parsed.quick else _SIZES[device.type]
    begin = time.perf_counter()
    transformers.logging.set_verbosity_error()

    training = _train_all(size, device)
    print(_curves(training))
    print(f"\nWhat the model writes after {size.steps} steps:\n{training.sample}\n")

    settings = _bench_settings(device, size, parsed.quick)
    result = dataclasses.replace(runner.run(settings), training=training)
    if (means := summary.render(result)) is not None:
        print(f"{means}\n")
    print(table.render(result))
    for line in table.skipped_lines(result):
        print(line)
    report.write(result, parsed.output)
    if parsed.json:
        schema.save(result, parsed.json)
    print(f"\nwrote {parsed.output} after {time.perf_counter() - begin:.0f} s")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_kernels.demo",
        description="Trains a GPT-2 stock and with our kernels, then times every op.",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="a short form, for CI")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures as well")
    return parser.parse_args(arguments)


def _train_all(size: Size, device: torch.device) -> Training:
    def fresh() -> Any:
        return stock_model(size.layers, size.width, size.heads, size.block, _SEED)

    print(f"{size}; bytes of the Python documentation, {size.batch}x{size.block} a step")
    with_attention = put_in_kernels(fresh(), fused_attention)
    models = {
        "stock": fresh(),
        "norms + softmax": put_in_kernels(fresh(), softmax_attention),
        "norms + attention": with_attention,
    }
    runs = train(models, size, device)
    return Training(str(size), runs, generate(with_attention, size, device))


def _curves(training: Training) -> str:
    """The loss curves side by side, at evenly spaced steps, and their distance from stock."""
    stock, *others = training.runs
    last = len(stock.losses) - 1
    lines = min(_CURVE_LINES, last + 1)
    shown = sorted({round(i * last / max(lines - 1, 1)) for i in range(lines)})
    body = [[f"step {i + 1}", f"{stock.losses[i]:.5f}"] for i in shown]
    body.append(["tokens/s", f"{stock.tokens_per_second:.0f}"])
    headings = [("", 12), (stock.name, 10)]
    for run in others:
        headings += [(run.name, 10), ("difference", 10)]
        differences = training.differences(run)
        ratio = run.tokens_per_second / stock.tokens_per_second
        cells = [(f"{run.losses[i]:.5f}", f"{differences[i]:+.1e}") for i in shown]
        cells.append((f"{run.tokens_per_second:.0f}", f"{ratio:.2f}x"))
        for line, pair in zip(body, cells, strict=True):
            line += pair
    subtitle = f"largest difference {training.largest_difference:.1e}"
    return table.box("TRAINING LOSS", subtitle, headings, body)


def _bench_settings(device: torch.device, size: Size, quick: bool) -> runner.Settings:
    on_gpu = device.type == "cuda"
    dtypes = (torch.float32,) if quick else (torch.float32, torch.bfloat16)

    def shapes(op: Op, _: torch.dtype) -> list[sweeps.Shape]:
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


if __name__ == "__main__":
    sys.exit(main())
