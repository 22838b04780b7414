#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps of examples/cpp/gpt2, as its log has them.

    gpt2_cpp.py PROGRAM [--model 124M] [--device cuda] [--batch 16] [--length 1024] [--json FILE]

Weights are random and the text is this repository's README, because neither changes the time. The
first quarter of the steps is left out: kernels are loaded, a graph is recorded and the clocks rise.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from transformer_kernels.bench import race
from transformer_kernels.measure import machine, schema
from transformer_kernels.measure.schema import StepTime

TEXT = Path(__file__).resolve().parent.parent / "README.md"
SIZES = {  # channels, layers, heads
    "124M": (768, 12, 12),
    "355M": (1024, 24, 16),
    "tiny": (64, 2, 2),
}


def train(given: argparse.Namespace, out: Path) -> list[float]:
    """Runs the program, and returns the milliseconds of each step."""
    channels, layers, heads = SIZES[given.model]
    options = {
        "data": TEXT, "out": out, "vocabulary": 50257, "positions": given.length,
        "channels": channels, "layers": layers, "heads": heads, "batch": given.batch,
        "length": given.length, "steps": given.steps, "warmup": 2, "save-every": given.steps,
        "device": given.device,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(given.program), "train", "--bfloat16", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with (out / "log.csv").open(newline="") as file:
        return [float(row["milliseconds"]) for row in csv.DictReader(file)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path, help="gpt2, as docs/cpp_gpt2.md builds it")
    parser.add_argument("--model", choices=SIZES, default="124M")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens of each")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = train(given, Path(folder) / "out")[given.steps // 4 :]
    p10, median, p90 = (1e3 * float(us) for us in np.percentile(times, (10, 50, 90)))
    row = StepTime("C++", median, p10, p90, len(times), None)
    settings = {
        "model": f"GPT-2 {given.model}, examples/cpp/gpt2", "dtype": "bfloat16",
        "batch": f"{given.batch} x {given.length}",
    }  # fmt: skip
    result = machine.new_result(torch.device(given.device), settings, step_times=[row])
    print(race.render(result))
    if given.json:
        schema.save(result, given.json)


if __name__ == "__main__":
    main()
