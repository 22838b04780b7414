# SPDX-License-Identifier: MIT
"""Trains a GPT-2 stock and with our kernels, side by side; then times every op against PyTorch,
and writes a page of it all. On a quiet machine with two cores it takes less than four minutes.

$ transformer-kernels demo --quick
$ transformer-kernels demo --model language-model --d-model 256 --seq-len 256 --profile-memory
$ transformer-kernels demo --race --json race.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.bench.options import add_device
from transformer_kernels.demo.kinds import KINDS
from transformer_kernels.demo.size import OPTIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument("--model", choices=KINDS, default="gpt2",
                        help="Hugging Face's GPT-2 or Mixtral, a mixture of experts; or the"
                        " language model of this package, which needs no other")  # fmt: skip
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a few steps and problems, for CI")
    length.add_argument(
        "--full", action="store_true",
        help="three times the steps, and every op at several sizes, however long it takes",
    )  # fmt: skip
    sizes = parser.add_argument_group("sizes", "without them those of the device")
    for option, field, words in OPTIONS:
        sizes.add_argument(option, type=int, dest=field, metavar="N", help=words)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--profile", action="store_true",
                         help="say instead where the time of a step goes")  # fmt: skip
    instead.add_argument("--race", action="store_true",
                         help="time instead whole steps: stock, compiled by torch.compile, and"
                         " ours")  # fmt: skip
    parser.add_argument("--profile-memory", action="store_true",
                        help="say also how much memory a training step takes")  # fmt: skip
    parser.add_argument("--plot", type=Path, nargs="?", const=Path("plots"), metavar="DIR",
                        help="draw also the plots, as SVG and PNG, in this folder; without a name"
                        " in plots")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
                        help="the page")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in this file")


def run(arguments: argparse.Namespace) -> int:
    kind = KINDS[arguments.model]()  # first, for its extra brings all that the demo needs
    from transformer_kernels.demo import run as demo  # loads matplotlib

    return demo.run(arguments, kind)
