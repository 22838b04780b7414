# SPDX-License-Identifier: MIT
"""Judges two result files row by row: same, faster, slower, or ambiguous where spreads overlap.

The exit status is 0 without a regression, 1 with one, and 2 where the files have no row in common.

    $ transformer-kernels compare before.json after.json --tolerance 0.03
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_kernels.bench import compare
from transformer_kernels.bench.options import names
from transformer_kernels.measure import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="of results, which `bench --json` writes")
    parser.add_argument("after", type=Path, help="of results, which `bench --json` writes")
    parser.add_argument("--providers", type=names, default=["ours"], help="whose rows to compare")
    add_judgement(parser)


def add_judgement(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say when a time is slower than another."""
    parser.add_argument(
        "--tolerance", type=float, default=compare.DEFAULT_TOLERANCE,
        help="share by which medians may differ and still be the same",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=("time", "ceiling"), default="time",
        help="compare microseconds, or times in units of the copy of the same run",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    before, after = schema.load(arguments.before), schema.load(arguments.after)
    return judge(before, after, arguments, arguments.providers)


def judge(
    before: schema.Result,
    after: schema.Result,
    arguments: argparse.Namespace,
    providers: list[str],
) -> int:
    """Prints the comparison; returns 1 where there is a regression.

    Raises:
        ValueError: the results have no row in common.
    """
    by_ceiling = arguments.by == "ceiling"
    comparisons = compare.compare(before, after, arguments.tolerance, providers, by_ceiling)
    machines = before.machine.device_name, after.machine.device_name
    if machines[0] != machines[1]:
        print(f"different machines: {machines[0]} and {machines[1]}")
    if all(c.ratio is None for c in comparisons):
        raise ValueError(
            f"compare: the results have no row of {', '.join(providers)} in common, expected the"
            " same op, pass, dtype and shape in both"
        )
    print(compare.render(comparisons, by_ceiling))
    counts = {v: sum(c.verdict is v for c in comparisons) for v in compare.Verdict}
    print(", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count))
    return 1 if compare.has_regression(comparisons) else 0
