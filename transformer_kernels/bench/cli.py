# SPDX-License-Identifier: MIT
"""The command `transformer-kernels`: bench, tune, levels, profilers, list, compare, plot, report,
fpga and info."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_kernels.bench import commands, fpga
from transformer_kernels.bench.compare import DEFAULT_TOLERANCE
from transformer_kernels.bench.providers import COMPILE_MODES, PROVIDERS
from transformer_kernels.bench.tune import OPS as TUNED_OPS
from transformer_kernels.bench.tune import PASSES as TUNED_PASSES
from transformer_kernels.levels import LEVELS
from transformer_kernels.measure.case import PASSES
from transformer_kernels.measure.heap import OUTPUTS
from transformer_kernels.measure.sweeps import SWEEPS


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except (ValueError, FileNotFoundError) as error:
        print(f"transformer-kernels: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="transformer-kernels", description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar="command")
    _add_bench(subparsers.add_parser("bench", help="measure ops against their rivals"))
    _add_tune(
        subparsers.add_parser("tune", help="time the products of linear layers on this machine")
    )
    _add_levels(subparsers.add_parser("levels", help="one transformer block in five levels"))

    profilers = subparsers.add_parser("profilers", help="what the profilers of tfk.profile cost")
    profilers.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    profilers.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    profilers.add_argument("--json", type=Path, metavar="FILE")
    profilers.set_defaults(run=commands.profilers)

    listing = subparsers.add_parser("list", help="list ops, passes, providers and sweeps")
    listing.set_defaults(run=commands.list_all)

    comparing = subparsers.add_parser(
        "compare", help="judge two result files row by row; exit 1 on a regression"
    )
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--tolerance", type=float, default=DEFAULT_TOLERANCE, help="default: %(default)s"
    )
    comparing.add_argument("--providers", type=_names, default=["ours"], help="default: ours")
    comparing.add_argument(
        "--by", choices=("time", "ceiling"), default="time",
        help="compare microseconds, or times in units of the copy of the same run",
    )  # fmt: skip
    comparing.set_defaults(run=commands.compare)

    plotting = subparsers.add_parser("plot", help="draw the plots of a result file")
    plotting.add_argument("file", type=Path)
    plotting.add_argument("-o", "--output", type=Path, default=Path("plots"), metavar="DIR")
    plotting.set_defaults(run=commands.plot)

    reporting = subparsers.add_parser("report", help="write a self-contained HTML page")
    reporting.add_argument("file", type=Path)
    reporting.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    reporting.set_defaults(run=commands.report)

    fpga.add_arguments(
        subparsers.add_parser("fpga", help="ops on the FPGA array's model beside the CPU's kernels")
    )

    info = subparsers.add_parser("info", help="what is installed, and on which machine")
    info.set_defaults(run=commands.info)
    return parser


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "ops", nargs="*",
        help="op, <family>/<op> or family; none means all but features of attention; `host`"
        " measures the cost of a call",
    )  # fmt: skip
    bench.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    bench.add_argument("--passes", type=_names, default=list(PASSES[:2]),
                       help=f"of {', '.join(PASSES)}; default: the first two")  # fmt: skip
    bench.add_argument("--dtype", type=_names, default=["bfloat16", "float32"],
                       help=f"of {', '.join(commands.DTYPES)}")  # fmt: skip
    bench.add_argument("--weights", type=_names, default=["input"],
                       help="dtypes of the norms' parameters, of input, float32")  # fmt: skip
    shapes = bench.add_mutually_exclusive_group()
    shapes.add_argument("--shapes", help="for example 8192x768,8x1024x4096; BxTxHxD of attention")
    shapes.add_argument("--sweep", type=_names, default=["quick"],
                        help=f"of {', '.join(SWEEPS)}")  # fmt: skip
    bench.add_argument("--providers", type=_names,
                       help=f"of {', '.join(PROVIDERS)}; default: who has the ops")  # fmt: skip
    bench.add_argument("--outputs", type=_names, default=list(OUTPUTS[:1]),
                       help=f"of {', '.join(OUTPUTS)}: memory that the system gives anew from 32 MB"
                       " on, or that is kept; on a CPU")  # fmt: skip
    bench.add_argument("--compile-mode", choices=COMPILE_MODES)
    bench.add_argument("--timer", choices=("graph", "events"), default="graph",
                       help="on a GPU; a CPU is timed by the wall clock")  # fmt: skip
    bench.add_argument("--seconds", type=float, default=0.5, help="of timing per problem")
    bench.add_argument("--budget", type=float, metavar="SECONDS",
                       help="leave out, from the largest down, what takes longer")  # fmt: skip
    bench.add_argument("--no-kernels", action="store_true",
                       help="do not find out which kernels the library chooses")  # fmt: skip
    bench.add_argument("--unit", choices=("us", "gbps", "tflops"), default="us")
    bench.add_argument("--json", type=Path, metavar="FILE")
    bench.add_argument("--plots", type=Path, metavar="DIR")
    bench.add_argument("--quiet", action="store_true", help="no progress, only the table")
    bench.set_defaults(run=commands.bench)


def _add_tune(tune: argparse.ArgumentParser) -> None:
    tune.add_argument("ops", nargs="*", help=f"of {', '.join(TUNED_OPS)}; none means both")
    tune.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    tune.add_argument("--passes", type=_names, default=list(TUNED_PASSES),
                      help=f"of {', '.join(TUNED_PASSES)}; default: both kinds")  # fmt: skip
    tune.add_argument("--dtype", type=_names, help=f"of {', '.join(commands.DTYPES)}; default:"
                      " bfloat16, and on a CPU float32")  # fmt: skip
    shapes = tune.add_mutually_exclusive_group()
    shapes.add_argument("--shapes", help="rows, terms, columns: 1024x768x3072,1x4096x4096")
    shapes.add_argument("--sweep", type=_names, default=["headline"],
                        help=f"of {', '.join(SWEEPS)}")  # fmt: skip
    tune.add_argument("--conv1d", action="store_true",
                      help="of weights that are kept as (terms, columns)")  # fmt: skip
    tune.add_argument("--seconds", type=float, default=0.2, help="of timing per product")
    tune.add_argument("--quiet", action="store_true", help="no progress, only the table")
    instead = tune.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="show what was timed already")
    instead.add_argument("--forget", action="store_true", help="remove the file that keeps times")
    tune.set_defaults(run=commands.tune)


def _add_levels(levels: argparse.ArgumentParser) -> None:
    levels.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    levels.add_argument("--levels", type=_names, default=list(LEVELS),
                        help=f"of {', '.join(LEVELS)}; default: all")  # fmt: skip
    levels.add_argument("--dtype", help=f"one of {', '.join(commands.DTYPES)}; default: bfloat16 on"
                        " a GPU, float32 on a CPU")  # fmt: skip
    levels.add_argument("--shape", help="batch, time and channels, for example 4x256x384")
    levels.add_argument("--heads", type=int, help="of attention; they divide the channels")
    levels.add_argument("--no-causal", action="store_true", help="attend to the future too")
    levels.add_argument("--seconds", type=float, default=0.5, help="of timing per pass")
    levels.add_argument("--json", type=Path, metavar="FILE")
    levels.add_argument("--plots", type=Path, metavar="DIR")
    levels.add_argument("--quiet", action="store_true", help="no progress, only the table")
    levels.set_defaults(run=commands.levels)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
