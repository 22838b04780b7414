# SPDX-License-Identifier: MIT
"""Measures ops against their rivals; each is verified against float64 before it is timed.

The exit status is 1 where no provider could run, or a row is slower than the baseline's.

$ transformer-kernels bench softmax norm --dtype float32 --shapes 8192x768
$ transformer-kernels bench attention --sweep headline --unit tflops --json attention.json
$ transformer-kernels bench layer_norm --batch 8,32 --seq-len 512,2048 --hidden 768,4096
$ transformer-kernels bench norm --save-baseline main
$ transformer-kernels bench norm --against main --tolerance 0.1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch

from transformer_kernels.bench import baseline, cases, host, runner, summary
from transformer_kernels.bench.commands.compare import add_judgement, judge
from transformer_kernels.bench.options import (
    DTYPES,
    add_device,
    add_outputs,
    keep,
    names,
    numbers,
    pick_device,
    require_known,
)
from transformer_kernels.bench.providers import COMPILE_MODES, PROVIDERS, why_absent
from transformer_kernels.measure import busy, heap, sweeps, table
from transformer_kernels.measure.case import PASSES, Case
from transformer_kernels.measure.schema import Result

HOST = "host"
# The sizes of `--batch`, `--seq-len` and `--hidden` where only some of them are given.
_MODEL = {"batch": [8], "seq_len": [1024], "hidden": [768]}
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
    for option, words in (
        ("--batch", "sequences in a batch"),
        ("--seq-len", "tokens of a sequence"),
        ("--hidden", "width of the model: attention has heads of 64, an MLP four times the width"),
    ):
        default = _MODEL[option[2:].replace("-", "_")][0]
        parser.add_argument(
            option, type=numbers, metavar="N,...",
            help=f"{words}; the shapes of such models, in all combinations, in place of a sweep;"
            f" {default} where only another of the three is given",
        )  # fmt: skip
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
                        help="leave out what takes longer; each op gets one problem first,"
                        " from the smallest up")  # fmt: skip
    parser.add_argument("--no-kernels", action="store_true",
                        help="do not find out which kernels the library chooses")  # fmt: skip
    parser.add_argument("--unit", choices=("us", "gbps", "tflops"), default="us",
                        help="of the table: microseconds, GB/s or TFLOP/s")  # fmt: skip
    add_outputs(parser)
    gate = parser.add_argument_group("baselines", "results kept by name in the user's cache")
    gate.add_argument("--save-baseline", metavar="NAME",
                      help="keep the result, unless it is a regression")  # fmt: skip
    gate.add_argument("--against", metavar="NAME",
                      help="compare our rows with a baseline's")  # fmt: skip
    add_judgement(parser)


def run(arguments: argparse.Namespace) -> int:
    device = pick_device(arguments.device)
    if arguments.ops == [HOST]:
        return _run_host(arguments, device)
    settings = _settings(arguments, device)
    before = baseline.load(arguments.against) if arguments.against else None
    if arguments.save_baseline:
        baseline.path_of(arguments.save_baseline)
    absent = {name: why_absent(name, device) for name in settings.providers}
    if None not in absent.values():
        return _fail(f"no provider can run: {'; '.join(f'{p}: {r}' for p, r in absent.items())}")
    watch = busy.Watch(device)
    result = runner.run(settings, quiet=arguments.quiet)
    _show(result, arguments.unit)
    if result.ceilings is not None:
        watch.add(result.ceilings.copy_gbps)
        if (reason := watch.signs().reason) is not None:
            print(f"the machine was busy: {reason}; ratios may be noise")
    keep(result, arguments)
    if all(row.provider == "copy" for row in result.rows):
        return _fail("nothing was measured; the lines above say why")
    status = 0 if before is None else judge(before, result, arguments, ["ours"])
    if arguments.save_baseline and status == 0:
        print(f"kept as {baseline.save(result, arguments.save_baseline)}")
    return status


def _run_host(arguments: argparse.Namespace, device: torch.device) -> int:
    if arguments.against or arguments.save_baseline:
        raise ValueError("--against and --save-baseline compare ops, expected others than `host`")
    result = host.run(device)
    print(host.render(result))
    keep(result, arguments)
    return 0


def _fail(reason: str) -> int:
    print(f"bench: {reason}", file=sys.stderr)
    return 1


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
    ops, shapes = _ops_and_shapes(arguments, device)
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


def _ops_and_shapes(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[Sequence[Case], Callable[[Case, torch.dtype], list[sweeps.Shape]]]:
    ops = cases.select(arguments.ops)
    given = {name: getattr(arguments, name) for name in _MODEL}
    if arguments.shapes and any(given.values()):
        raise ValueError("--shapes is given beside --batch, --seq-len or --hidden, expected one")
    if not any(given.values()):

        def shapes(op: Case, dtype: torch.dtype) -> list[sweeps.Shape]:
            if arguments.shapes:
                return op.grid.parse(arguments.shapes)
            return op.grid.shapes_of(arguments.sweep, device, dtype)

        return ops, shapes
    without = [op.name for op in ops if op.grid.of_model is None]
    if without and arguments.ops:
        raise ValueError(f"{without[0]} has no size of a batch or model, expected --shapes for it")
    sizes = [given[name] or default for name, default in _MODEL.items()]
    return (
        [op for op in ops if op.name not in without],
        lambda op, _: op.grid.shapes_of_models(*sizes),
    )
