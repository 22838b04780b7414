# SPDX-License-Identifier: MIT
"""Measures one transformer block in five levels, from plain PyTorch to these kernels.

$ transformer-kernels levels --shape 4x256x384 --heads 6 --plots plots
"""

from __future__ import annotations

import argparse

import torch

from transformer_kernels.bench.levels import run as levels
from transformer_kernels.bench.levels import show
from transformer_kernels.bench.options import (
    DTYPES,
    add_device,
    add_outputs,
    keep,
    names,
    pick_device,
    require_at_least,
    require_known,
)
from transformer_kernels.levels import LEVELS
from transformer_kernels.measure.sweeps import Grid, Shape

# The shape of a block, and its number of heads.
_SIZES: dict[str, tuple[Shape, int]] = {
    "cpu": ((4, 256, 384), 6),
    "cuda": ((8, 1024, 1024), 16),
}
_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
_BLOCKS = Grid(
    "4x256x384 (batch, time, channels)",
    lambda sizes: sizes if len(sizes) == 3 and all(sizes) else None,
    {},
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument("--levels", type=names, default=list(LEVELS),
                        help=f"of {', '.join(LEVELS)}")  # fmt: skip
    parser.add_argument("--dtype", help=f"one of {', '.join(DTYPES)}; without it bfloat16 on a GPU,"
                        " float32 on a CPU")  # fmt: skip
    parser.add_argument("--shape", help="batch, time and channels; without it 4x256x384 on a CPU,"
                        " 8x1024x1024 on a GPU")  # fmt: skip
    parser.add_argument("--heads", type=int, help="of attention, they divide the channels; without"
                        " it 6 on a CPU, 16 on a GPU")  # fmt: skip
    parser.add_argument("--no-causal", action="store_true", help="attend to the future too")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing per pass")
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    require_known("--levels", arguments.levels or [""], list(LEVELS))
    require_known("--dtype", [arguments.dtype] if arguments.dtype else [], DTYPES)
    require_at_least("--seconds", arguments.seconds, 0)
    device = pick_device(arguments.device)
    shape, heads = _size(arguments, device)
    settings = levels.Settings(
        device=device,
        dtype=getattr(torch, arguments.dtype or _DTYPES[device.type]),
        shape=shape,
        heads=heads,
        causal=not arguments.no_causal,
        levels=arguments.levels,
        seconds=arguments.seconds,
    )
    result = levels.run(settings, quiet=arguments.quiet)
    print(show.render(result))
    for line in show.lines(result):
        print(line)
    keep(result, arguments)
    return 0


def _size(arguments: argparse.Namespace, device: torch.device) -> tuple[Shape, int]:
    shape, heads = _SIZES[device.type]
    if arguments.shape is not None:
        parsed = _BLOCKS.parse(arguments.shape)
        if len(parsed) != 1:
            raise ValueError(f"--shape is {arguments.shape!r}, expected one")
        shape = parsed[0]
    return shape, heads if arguments.heads is None else arguments.heads
