# SPDX-License-Identifier: MIT
"""Measures what the profilers of tfk.profile cost, and compares them with `bench`.

$ transformer-kernels profilers --device cpu --json profilers.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.bench import profilers
from transformer_kernels.bench.options import add_device, pick_device, require_at_least
from transformer_kernels.measure import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument("--rounds", type=int, default=15, help="of each profiler in turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in this file")


def run(arguments: argparse.Namespace) -> int:
    require_at_least("--rounds", arguments.rounds, 1)
    result = profilers.run(pick_device(arguments.device), arguments.rounds)
    print(profilers.render(result))
    if arguments.json:
        schema.save(result, arguments.json)
    return 0
