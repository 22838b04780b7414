# SPDX-License-Identifier: MIT
"""Runs one transformer block in five levels: the same weights and results, on ever better kernels.

First by hand, to show that a level is one word; then measured: time, launches, bytes and memory of
each level on this machine, as a table and a plot. `transformer-kernels levels` has more options.
"""

import argparse
from pathlib import Path

import torch

import transformer_kernels as tfk
from transformer_kernels._extras import named
from transformer_kernels.bench.levels import run, show
from transformer_kernels.bench.options import pick_device, write_plots

BATCH, TIME, CHANNELS, HEADS = 4, 128, 256, 4


def same_results(device: torch.device, levels: list[str]) -> None:
    """Checks that every level that runs here loads the first one's weights and gives its
    results."""
    torch.manual_seed(0)
    native = tfk.levels.Block("torch", CHANNELS, HEADS, device=device)
    x = torch.randn(1, 8, CHANNELS, device=device)
    expected = native(x)
    for name in levels:
        if (reason := tfk.levels.LEVELS[name].why_absent(device)) is not None:
            print(f"{name}: {reason}")
            continue
        block = tfk.levels.Block(name, CHANNELS, HEADS, device=device)
        block.load_state_dict(native.state_dict())
        difference = (block(x) - expected).abs().max()
        print(f"{name}: differs from PyTorch by at most {difference:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--levels", nargs="+", choices=tfk.levels.LEVELS,
                        default=list(tfk.levels.LEVELS))  # fmt: skip
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where to draw the figures")
    arguments = parser.parse_args()
    device = pick_device(arguments.device)

    same_results(device, arguments.levels)

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    result = run.run(
        run.Settings(device, dtype, (BATCH, TIME, CHANNELS), HEADS, levels=arguments.levels)
    )
    print(show.render(result))
    print("\n".join(show.lines(result)))
    if arguments.plots is not None:
        with named("progressive_optimization"):  # matplotlib
            write_plots(result, arguments.plots)


if __name__ == "__main__":
    main()
