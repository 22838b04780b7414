# SPDX-License-Identifier: MIT
"""Trains a GPT-2 with stock PyTorch and with our kernels, then times every op against PyTorch.

$ transformer-kernels demo --quick
$ transformer-kernels demo --race --json race.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.bench.options import add_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument("--quick", action="store_true", help="a short form, for CI")
    parser.add_argument(
        "--profile", action="store_true", help="say instead where the time of a step goes"
    )
    parser.add_argument(
        "--race", action="store_true",
        help="time instead whole steps: stock, compiled by torch.compile, and ours",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
                        help="the page")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures as well")


def run(arguments: argparse.Namespace) -> int:
    from transformer_kernels.demo import run as demo  # loads transformers and matplotlib

    return demo.run(arguments)
