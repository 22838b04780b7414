# SPDX-License-Identifier: MIT
"""Puts predicted times beside measured ones, and says what other machines would give.

The machine's numbers come from the copies and products that the files hold, and from a card's data
sheet; a CPU's remaining rates are fitted to the times of all ops. With --by a card is predicted
from the results of another one, and a CPU from other results of its own.

Without files the machine in hand is shown: its card, or the CPU where there is none. It is measured
once and kept, and --measure measures it again.

    $ transformer-kernels analyze benchmarks/results/h200_linear.json --what-if
    $ transformer-kernels analyze benchmarks/results/h200*.json --steps
    $ transformer-kernels analyze -o build/plots
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformer_kernels import hardware
from transformer_kernels.bench import analysis
from transformer_kernels.bench.options import add_device, pick_device
from transformer_kernels.measure import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        help="of results of one card or CPU, which `bench --json` writes; this machine without one",
    )
    parser.add_argument(
        "--by", type=Path, nargs="+", metavar="FILE",
        help="results of another card, or of other ops on the same CPU, which the machine is "
        "predicted from",
    )  # fmt: skip
    parser.add_argument(
        "--measure", action="store_true",
        help="measure this machine, without files, also where that was done before",
    )  # fmt: skip
    add_device(parser)
    parser.add_argument(
        "--what-if", action="store_true", help="what faster memory or other cards would give"
    )
    parser.add_argument(
        "--steps", action="store_true",
        help="training steps of whole models, predicted on this card and on others",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="where the plots are written"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.measure or not arguments.files:
        return _show_this_machine(arguments)
    results = _load(arguments.files)
    measured_on = _load(arguments.by) if arguments.by else results
    print(analysis.render(results, measured_on, what_if=arguments.what_if))
    if arguments.steps:
        _print_steps(arguments.files, analysis.machine_of(results, measured_on))
    if arguments.output:
        machine = analysis.machine_of(results, measured_on)
        _draw(analysis.compare(results, machine), machine, arguments.output)
    return 0


def _show_this_machine(arguments: argparse.Namespace) -> int:
    if arguments.files:
        raise ValueError(f"analyze: --measure is given with {arguments.files[0]}, expected no file")
    for option in ("by", "what_if", "steps"):
        if getattr(arguments, option):
            name = option.replace("_", "-")
            raise ValueError(f"analyze: --{name} is given without files, expected some of results")
    device = pick_device(arguments.device)
    measure = hardware.measure_cuda if device.type == "cuda" else hardware.measure_cpu
    machine = (None if arguments.measure else hardware.kept(device)) or measure()
    print(analysis.machine_table(machine))
    if arguments.output:
        _draw([], machine, arguments.output)
    return 0


def _print_steps(paths: Sequence[Path], machine: hardware.Hardware) -> None:
    from transformer_kernels.bench import steps  # declares the ops of all families

    results = [schema.load(path) for path in paths]
    corrections = steps.Corrections([result for result in results if result.rows], machine)
    found = steps.all_steps()
    corrected = {name: corrections.corrected(step) for name, step in found.items()}
    print(steps.validation_table(found, [(machine, results)], corrections))
    print(steps.what_if_table(corrected, machine))


def _draw(compared: list[analysis.Compared], machine: hardware.Hardware, folder: Path) -> None:
    from transformer_kernels.bench import analysis_plots  # loads matplotlib

    for path in analysis_plots.write(compared, machine, folder):
        print(f"wrote {path}")


def _load(paths: Sequence[Path]) -> list[schema.Result]:
    """The files that have rows of ops."""
    return [result for result in map(schema.load, paths) if result.rows]
