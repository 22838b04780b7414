# SPDX-License-Identifier: MIT
"""Times the products of linear layers on this machine, and the plans of other ops' kernels on a
CPU, and stores the fastest of each.

From then on each product of these sizes runs on the implementation that was fastest, and each
kernel by its best plan, if it takes 2 % less time than the choice by rules in a second look too.

    $ transformer-kernels tune linear --shapes 1024x768x3072 --dtype bfloat16
    $ transformer-kernels tune softmax --shapes 2048x768 --device cpu
"""

from __future__ import annotations

import argparse

import torch

from transformer_kernels.bench import cases
from transformer_kernels.bench import tune as tuned
from transformer_kernels.bench import tune_plans as planned
from transformer_kernels.bench.options import (
    DTYPES,
    add_device,
    names,
    pick_device,
    require_at_least,
    require_known,
)
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.sweeps import SWEEPS
from transformer_kernels.tune import tune_file

_DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ops", nargs="*", help=f"of {', '.join(tuned.OPS)}, which are timed without"
                        f" one; on a CPU also of {', '.join(planned.planned_ops())}")  # fmt: skip
    add_device(parser)
    parser.add_argument("--passes", type=names, default=list(tuned.PASSES),
                        help=f"of {', '.join(tuned.PASSES)}")  # fmt: skip
    parser.add_argument("--dtype", type=names, help=f"of {', '.join(DTYPES)}; without it bfloat16,"
                        " and on a CPU float32 too")  # fmt: skip
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--shapes", help="rows, terms, columns: 1024x768x3072,1x4096x4096")
    shapes.add_argument("--sweep", type=names, default=["headline"],
                        help=f"of {', '.join(SWEEPS)}")  # fmt: skip
    parser.add_argument("--conv1d", action="store_true",
                        help="time weights that are kept as (terms, columns)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=0.2, help="of timing per product")
    parser.add_argument("--quiet", action="store_true", help="show no progress, only the table")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="show what was timed already")
    instead.add_argument("--forget", action="store_true", help="remove the file that keeps times")


def run(arguments: argparse.Namespace) -> int:
    device, path = pick_device(arguments.device), tune_file()
    if arguments.forget:
        path.unlink(missing_ok=True)
        print(f"removed {path}")
        return 0
    if arguments.list:
        print(tuned.render_kept(device))
        if device.type == "cpu":
            print(planned.render_kept())
        return 0
    of_plans = [op for op in arguments.ops if op not in tuned.OPS]
    if of_plans:
        found = planned.run(_of_plans(arguments, device, of_plans), quiet=arguments.quiet)
        print(planned.render(found))
        kept = sum(one.kept is not None for one in found)
        print(f"{kept} of {len(found)} run by another plan than the rule's; kept in {path}")
        arguments.ops = [op for op in arguments.ops if op in tuned.OPS]
        if not arguments.ops:
            return 0
    lines = tuned.run(_settings(arguments, device), quiet=arguments.quiet)
    print(tuned.render(lines))
    gains = [line.gain for line in lines]
    changed = sum(gain > 1 for gain in gains)
    print(f"{changed} of {len(lines)} are chosen otherwise than by rules; kept in {path}")
    print(f"geometric mean of the gains: {geometric_mean(gains):.3f}x")
    return 0


def _of_plans(
    arguments: argparse.Namespace, device: torch.device, ops: list[str]
) -> planned.Settings:  # fmt: skip
    known = (*tuned.OPS, *planned.planned_ops()) if device.type == "cpu" else tuned.OPS
    require_known("op", ops, known)
    dtypes = _dtypes(arguments, device)
    return planned.Settings(
        ops, arguments.passes, dtypes, arguments.shapes, arguments.sweep, arguments.seconds
    )


def _dtypes(arguments: argparse.Namespace, device: torch.device) -> list[torch.dtype]:
    """The dtypes that are timed, once the other arguments are known to be right."""
    dtype_names = arguments.dtype or _DTYPES[device.type]
    require_known("--passes", arguments.passes, tuned.PASSES)
    require_known("--dtype", dtype_names, DTYPES)
    require_known("--sweep", arguments.sweep, SWEEPS)
    require_at_least("--seconds", arguments.seconds, 0)
    return [getattr(torch, name) for name in dtype_names]


def _settings(arguments: argparse.Namespace, device: torch.device) -> tuned.Settings:
    dtypes = _dtypes(arguments, device)
    grid = cases.all_ops()["linear"].grid
    shapes = (
        grid.parse(arguments.shapes)
        if arguments.shapes
        else grid.shapes_of(arguments.sweep, device, dtypes[0])
    )
    return tuned.Settings(
        device=device,
        ops=arguments.ops or tuned.OPS,
        passes=arguments.passes,
        dtypes=dtypes,
        shapes=shapes,
        conv1d=arguments.conv1d,
        seconds=arguments.seconds,
    )
