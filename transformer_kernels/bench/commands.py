# SPDX-License-Identifier: MIT
"""Runs the commands of `transformer-kernels` with their parsed arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from transformer_kernels.bench import cases, host, runner, summary
from transformer_kernels.bench import tune as tuned
from transformer_kernels.bench.compare import Comparison, Verdict, has_regression
from transformer_kernels.bench.compare import compare as compare_results
from transformer_kernels.bench.providers import COMPILE_MODES, PROVIDERS
from transformer_kernels.info import info as describe
from transformer_kernels.levels import LEVELS
from transformer_kernels.measure import heap, machine, schema, sweeps, table
from transformer_kernels.measure.case import PASSES, Case
from transformer_kernels.tune import tune_file

DTYPES = ("float32", "bfloat16", "float16", "float64")
WEIGHTS = {"input": None, "float32": torch.float32}
HOST = "host"
# The shape of a block, and its number of heads.
_LEVEL_SIZES: dict[str, tuple[sweeps.Shape, int]] = {
    "cpu": ((4, 256, 384), 6),
    "cuda": ((8, 1024, 1024), 16),
}
_TUNED_DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16",)}
_LEVEL_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
_BLOCKS = sweeps.Grid(
    "4x256x384 (batch, time, channels)",
    lambda sizes: sizes if len(sizes) == 3 and all(sizes) else None,
    {},
)


def bench(arguments: argparse.Namespace) -> int:
    device = pick_device(arguments.device)
    if arguments.ops == [HOST]:
        result = host.run(device)
        print(host.render(result))
    else:
        result = runner.run(_settings(arguments, device), quiet=arguments.quiet)
        print(table.render(result, arguments.unit))
        for line in table.skipped_lines(result):
            print(line)
        if (means := summary.render(result)) is not None:
            print(means)
    if arguments.json:
        schema.save(result, arguments.json)
    if arguments.plots:
        _write_plots(result, arguments.plots)
    return 0


def tune(arguments: argparse.Namespace) -> int:
    device, path = pick_device(arguments.device), tune_file()
    if arguments.forget:
        path.unlink(missing_ok=True)
        print(f"removed {path}")
        return 0
    if arguments.list:
        print(tuned.render_kept(device))
        return 0
    lines = tuned.run(_tune_settings(arguments, device), quiet=arguments.quiet)
    print(tuned.render(lines))
    changed = sum(line.times.fastest != line.by_rules for line in lines)
    print(f"{changed} of {len(lines)} are chosen otherwise than by rules; kept in {path}")
    return 0


def levels(arguments: argparse.Namespace) -> int:
    from transformer_kernels.bench.levels import run, show

    _require_known("--levels", arguments.levels or [""], list(LEVELS))
    _require_known("--dtype", [arguments.dtype] if arguments.dtype else [], DTYPES)
    if arguments.seconds < 0:
        raise ValueError(f"--seconds is {arguments.seconds}, expected at least 0")
    device = pick_device(arguments.device)
    shape, heads = _level_size(arguments, device)
    settings = run.Settings(
        device=device,
        dtype=getattr(torch, arguments.dtype or _LEVEL_DTYPES[device.type]),
        shape=shape,
        heads=heads,
        causal=not arguments.no_causal,
        levels=arguments.levels,
        seconds=arguments.seconds,
    )
    result = run.run(settings, quiet=arguments.quiet)
    print(show.render(result))
    for line in show.lines(result):
        print(line)
    if arguments.json:
        schema.save(result, arguments.json)
    if arguments.plots:
        _write_plots(result, arguments.plots)
    return 0


def profilers(arguments: argparse.Namespace) -> int:
    from transformer_kernels.bench import profilers as measured

    if arguments.rounds < 1:
        raise ValueError(f"--rounds is {arguments.rounds}, expected at least 1")
    result = measured.run(pick_device(arguments.device), arguments.rounds)
    print(measured.render(result))
    if arguments.json:
        schema.save(result, arguments.json)
    return 0


def list_all(_: argparse.Namespace) -> int:
    ops = "\n".join(f"  {op.name:<20}{op.key}" for op in cases.all_ops().values())
    rows = {
        "passes": PASSES,
        "providers": PROVIDERS,
        "dtypes": DTYPES,
        "sweeps": sweeps.SWEEPS,
        "levels": list(LEVELS),
    }
    lists = "\n".join(f"{name:<12}{', '.join(values)}" for name, values in rows.items())
    print(f"ops\n{ops}\n{lists}\n{HOST:<12}host time of one eager call")
    return 0


def compare(arguments: argparse.Namespace) -> int:
    before, after = schema.load(arguments.before), schema.load(arguments.after)
    comparisons = compare_results(
        before, after, arguments.tolerance, arguments.providers, arguments.by == "ceiling"
    )
    names = before.machine.device_name, after.machine.device_name
    if names[0] != names[1]:
        print(f"different machines: {names[0]} and {names[1]}")
    print(_comparison_table(comparisons, arguments.by))
    counts = {v: sum(c.verdict is v for c in comparisons) for v in Verdict}
    print(", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count))
    return 1 if has_regression(comparisons) else 0


def plot(arguments: argparse.Namespace) -> int:
    _write_plots(schema.load(arguments.file), arguments.output)
    return 0


def report(arguments: argparse.Namespace) -> int:
    from transformer_kernels.bench import report as page  # loads matplotlib

    page.write(schema.load(arguments.file), arguments.output)
    print(f"wrote {arguments.output}")
    return 0


def info(_: argparse.Namespace) -> int:
    print(describe())
    print(f"{'machine':<20}{machine.describe_machine(pick_device('auto')).device_name}")
    return 0


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is 'cuda', but PyTorch sees no CUDA device")
    return torch.device(name)


def _level_size(arguments: argparse.Namespace, device: torch.device) -> tuple[sweeps.Shape, int]:
    shape, heads = _LEVEL_SIZES[device.type]
    if arguments.shape is not None:
        parsed = _BLOCKS.parse(arguments.shape)
        if len(parsed) != 1:
            raise ValueError(f"--shape is {arguments.shape!r}, expected one")
        shape = parsed[0]
    return shape, heads if arguments.heads is None else arguments.heads


def _settings(arguments: argparse.Namespace, device: torch.device) -> runner.Settings:
    _require_known("--passes", arguments.passes, PASSES)
    _require_known("--dtype", arguments.dtype, DTYPES)
    _require_known("--weights", arguments.weights, list(WEIGHTS))
    _require_known("--sweep", arguments.sweep, sweeps.SWEEPS)
    _require_known("--providers", arguments.providers or (), PROVIDERS)
    _require_known("--outputs", arguments.outputs, heap.OUTPUTS)
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
        weight_dtypes=[WEIGHTS[name] for name in arguments.weights],
        timer=arguments.timer,
        seconds=arguments.seconds,
        compile_mode=arguments.compile_mode or COMPILE_MODES[device.type == "cuda"],
        find_kernels=not arguments.no_kernels,
        budget_seconds=arguments.budget,
    )


def _tune_settings(arguments: argparse.Namespace, device: torch.device) -> tuned.Settings:
    names = arguments.dtype or _TUNED_DTYPES[device.type]
    _require_known("op", arguments.ops, tuned.OPS)
    _require_known("--passes", arguments.passes, tuned.PASSES)
    _require_known("--dtype", names, DTYPES)
    _require_known("--sweep", arguments.sweep, sweeps.SWEEPS)
    if arguments.seconds < 0:
        raise ValueError(f"--seconds is {arguments.seconds}, expected at least 0")
    dtypes = [getattr(torch, name) for name in names]
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


def _require_known(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{option} is {name!r}, expected one of {', '.join(known)}")


def _comparison_table(comparisons: Sequence[Comparison], by: str) -> str:
    headings = [("Kernel", 31), ("provider", 8), ("before", 8), ("after", 8), ("ratio", 6),
                ("verdict", 9)]  # fmt: skip
    figures = "time in copies of as many bytes" if by == "ceiling" else "microseconds, median"
    body = [
        [
            table.label(c.row),
            c.row.provider,
            f"{c.before.median_us:.2f}" if c.before else table.ABSENT,
            f"{c.after.median_us:.2f}" if c.after else table.ABSENT,
            f"{c.ratio:.3f}" if c.ratio else table.ABSENT,
            c.verdict.value,
        ]
        for c in comparisons
    ]
    return table.box("COMPARISON", figures, headings, body)


def _write_plots(result: schema.Result, folder: Path) -> None:
    from transformer_kernels.bench import plots  # loads matplotlib

    for path in plots.write(result, folder):
        print(f"wrote {path}")
