# SPDX-License-Identifier: MIT
"""Says what three proposals of hardware for attention would give: a cache for its patterns, matrix
units made for it, and streaming dataflow.

The machine, and the times of attention, come from the files. What caches do was simulated once;
--simulate does it again, for minutes.

    $ transformer-kernels proposals benchmarks/results/h200*.json benchmarks/results/fpga_ops.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.bench.proposals import traffic
from transformer_kernels.bench.proposals.report import Report
from transformer_kernels.measure import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", help="of results of one card, with those of "
                        "attention, and of ops on the FPGA array")  # fmt: skip
    parser.add_argument(
        "--traffic", type=Path, default=Path("benchmarks/proposals/cache.json"), metavar="FILE",
        help="of simulated caches",
    )  # fmt: skip
    parser.add_argument(
        "--simulate", action="store_true", help="simulate the caches, and write that file"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="where the pictures are written"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.simulate:
        traffic.save(list(traffic.simulated()), arguments.traffic)
    results = [schema.load(path) for path in arguments.files]
    report = Report(
        [result for result in results if result.rows],
        traffic.load(arguments.traffic),
        [row for result in results for row in result.array],
    )
    print(report)
    if arguments.output:
        _draw(report, arguments.output)
    return 0


def _draw(report: Report, folder: Path) -> None:
    from transformer_kernels.measure import style  # loads matplotlib

    for name, plot in report.plots().items():
        with plot.figure() as drawn:
            for path in style.save(drawn, folder, name):
                print(f"wrote {path}")
