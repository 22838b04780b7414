# SPDX-License-Identifier: MIT
"""Draws the plots of a result file, as SVG and PNG.

$ transformer-kernels plot result.json --output plots
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.bench.options import write_plots
from transformer_kernels.measure import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="of results, which `--json` writes")
    parser.add_argument("-o", "--output", type=Path, default=Path("plots"), metavar="DIR",
                        help="where the plots are written")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    write_plots(schema.load(arguments.file), arguments.output)
    return 0
