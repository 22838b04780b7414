# SPDX-License-Identifier: MIT
"""Measures ops against their rivals; each is verified against float64 before it is timed.

$ transformer-kernels bench softmax norm --dtype float32 --shapes 8192x768
$ transformer-kernels bench attention --sweep headline --unit tflops --json attention.json
"""

from __future__ import annotations

import argparse

import torch

from transformer_kernels.bench import cases, host, runner, summary
from transformer_kernels.bench.options import (
    DTYPES,
    add_device,
    add_outputs,
    keep,
    names,
    pick_device,
    require_known,
)
from transformer_kernels.bench.providers import COMPILE_MODES, PROVIDERS
from transformer_kernels.measure import heap, sweeps, table
from transformer_kernels.measure.case import PASSES, Case
from transformer_kernels.measure.schema import Result

HOST = "host"
_WEIGHTS = {"input": None, "float32": torch.float32}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ops", nargs="*",
        help="op, <family>/<op> or family; none means all but features of attention; `host`"
        " measures the cost of a call",
    )  # fmt: skip
    add_device(parser)
    parser.add_argument("--passes", type=names, default=list(PASSES[:2]),
                        help=f"of {', '.join(PASSES)}")  # fmt: skip
    parser.add_argument("--dtype", type=names, default=["bfloat16", "float32"],
                        help=f"of {', '.join(DTYPES)}")  # fmt: skip
    parser.add_argument("--weights", type=names, default=["input"],
                        help="dtypes of the norms' parameters, of input, float32")  # fmt: skip
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--shapes", help="for example 8192x768,8x1024x4096; BxTxHxD of attention")
    shapes.add_argument("--sweep", type=names, default=["quick"],
                        help=f"of {', '.join(sweeps.SWEEPS)}")  # fmt: skip
    parser.add_argument("--providers", type=names, help=f"of {', '.join(PROVIDERS)}; without it"
                        " all that have the ops")  # fmt: skip
    parser.add_argument("--outputs", type=names, default=list(heap.OUTPUTS[:1]),
                        help=f"of {', '.join(heap.OUTPUTS)}: memory that the system gives anew from"
                        " 32 MB on, or that is kept; on a CPU")  # fmt: skip
    parser.add_argument("--compile-mode", choices=COMPILE_MODES, help="of torch.compile; without it"
                        f" {COMPILE_MODES[0]}, on a GPU {COMPILE_MODES[1]}")  # fmt: skip
    parser.add_argument("--timer", choices=("graph", "events"), default="graph",
                        help="on a GPU; a CPU is timed by the wall clock")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing per problem")
    parser.add_argument("--budget", type=float, metavar="SECONDS",
                        help="leave out, from the largest down, what takes longer")  # fmt: skip
    parser.add_argument("--no-kernels", action="store_true",
                        help="do not find out which kernels the library chooses")  # fmt: skip
    parser.add_argument("--unit", choices=("us", "gbps", "tflops"), default="us",
                        help="of the table: microseconds, GB/s or TFLOP/s")  # fmt: skip
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    device = pick_device(arguments.device)
    if arguments.ops == [HOST]:
        result = host.run(device)
        print(host.render(result))
    else:
        result = runner.run(_settings(arguments, device), quiet=arguments.quiet)
        _show(result, arguments.unit)
    keep(result, arguments)
    return 0


def _show(result: Result, unit: str) -> None:
    print(table.render(result, unit))
    for line in table.skipped_lines(result):
        print(line)
    if (means := summary.render(result)) is not None:
        print(means)


def _settings(arguments: argparse.Namespace, device: torch.device) -> runner.Settings:
    require_known("--passes", arguments.passes, PASSES)
    require_known("--dtype", arguments.dtype, DTYPES)
    require_known("--weights", arguments.weights, list(_WEIGHTS))
    require_known("--sweep", arguments.sweep, sweeps.SWEEPS)
    require_known("--providers", arguments.providers or (), PROVIDERS)
    require_known("--outputs", arguments.outputs, heap.OUTPUTS)
    if "reused" in arguments.outputs and not (device.type == "cpu" and heap.is_known()):
        raise ValueError("--outputs is 'reused', expected 'fresh': only a CPU with glibc has both")
    dtypes = [getattr(torch, name) for name in arguments.dtype]
    ops = cases.select(arguments.ops)

    def shapes(op: Case, dtype: torch.dtype) -> list[sweeps.Shape]:
        if arguments.shapes:
            return op.grid.parse(arguments.shapes)
        return op.grid.shapes_of(arguments.sweep, device, dtype)

    return runner.Settings(
        ops=ops,
        passes=arguments.passes,
        dtypes=dtypes,
        shapes=shapes,
        device=device,
        providers=arguments.providers
        or [p for p in PROVIDERS if any(p in op.providers for op in ops)],
        outputs=arguments.outputs,
        weight_dtypes=[_WEIGHTS[name] for name in arguments.weights],
        timer=arguments.timer,
        seconds=arguments.seconds,
        compile_mode=arguments.compile_mode or COMPILE_MODES[device.type == "cuda"],
        find_kernels=not arguments.no_kernels,
        budget_seconds=arguments.budget,
    )
