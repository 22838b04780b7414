# SPDX-License-Identifier: MIT
"""Writes a self-contained HTML page of a result file: plots, tables and the machine.

$ transformer-kernels report result.json --output report.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.measure import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="of results, which `--json` writes")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
                        help="the page")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from transformer_kernels.bench import report  # loads matplotlib

    report.write(schema.load(arguments.file), arguments.output)
    print(f"wrote {arguments.output}")
    return 0
