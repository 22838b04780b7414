# SPDX-License-Identifier: MIT
"""The program ``transformer-kernels``, which is ``python -m transformer_kernels`` too.

A command is a line of `COMMANDS` and a module. The module's docstring is the command's help, with
an example; ``add_arguments(parser)`` declares its arguments and ``run(arguments)`` returns the exit
status. Only the module of the command that is asked for is imported.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _completion
from ._extras import why_missing
from ._version import __version__

PROGRAM = "transformer-kernels"
FAILED, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Command:
    name: str
    module: str  # relative to this package
    summary: str


# In alphabetical order, a line each.
COMMANDS = (
    Command("analyze", "bench.commands.analyze", "predicted times beside measured ones"),
    Command("bench", "bench.commands.bench", "measure ops against their rivals"),
    Command("chat", "generation.chat", "talk with a language model in the terminal"),
    Command("compare", "bench.commands.compare", "judge two result files row by row"),
    Command("demo", "demo.command", "train a GPT-2 stock and with our kernels, time every op"),
    Command("doctor", "doctor", "examine this installation: what is missing, and how to get it"),
    Command("fpga", "bench.fpga", "ops on the FPGA array's model beside the CPU's kernels"),
    Command("fuse", "fuse.command", "fuse the model that a function makes, and show the plan"),
    Command("info", "bench.commands.info", "what is installed, and on which machine"),
    Command("levels", "bench.commands.levels", "one transformer block in five levels"),
    Command("list", "bench.commands.list", "list ops, passes, providers and sweeps"),
    Command("plot", "bench.commands.plot", "draw the plots of a result file"),
    Command("profilers", "bench.commands.profilers", "what the profilers of tfk.profile cost"),
    Command("proposals", "bench.commands.proposals", "what other hardware would do for attention"),
    Command("race", "bench.commands.race", "training steps of a model: stock, compiled, fused"),
    Command("report", "bench.commands.report", "write a self-contained HTML page"),
    Command("serve", "serving.command", "serve a language model over HTTP"),
    Command("tune", "bench.commands.tune", "time the products of linear layers on this machine"),
    Command("tutorial", "tutorial.command", "climb a ladder of kernels: text, source, table"),
)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a description, and adds an option's default to its help."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if not action.option_strings or default in (None, False, [], argparse.SUPPRESS):
            return action.help
        shown = ",".join(map(str, default)) if isinstance(default, (list, tuple)) else default
        return f"{action.help or ''} (default: {shown})".strip().replace("%(default)s", str(shown))


class PrintCompletion(argparse.Action):
    """Prints a shell's script, for which it needs the arguments of every command, and ends."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _option: Any = None
    ) -> None:
        print(_completion.script(whole(), values))
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status, or 2 with a message where it was called wrongly."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        parsed = parser(given[:1]).parse_args(given)
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except ImportError as error:
        if (reason := why_missing(error)) is None:
            raise
    except (ValueError, OSError) as error:
        reason = str(error)
    print(f"{PROGRAM}: {reason}", file=sys.stderr)
    return FAILED


def whole() -> argparse.ArgumentParser:
    """The parser with the arguments of every command."""
    return parser([command.name for command in COMMANDS])


def parser(loaded: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of those in ``loaded``."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Fused transformer kernels: measure, compare and tune them on this machine.",
        epilog=f"`{PROGRAM} COMMAND --help` has a command's arguments and an example.",
        formatter_class=functools.partial(HelpFormatter, max_help_position=16),
    )
    made.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    made.add_argument(
        "--print-completion", action=PrintCompletion, choices=_completion.SHELLS, metavar="SHELL",
        help="print a script that completes commands and options in bash or zsh",
    )  # fmt: skip
    subparsers = made.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for command in COMMANDS:
        if command.name not in loaded:
            subparsers.add_parser(command.name, help=command.summary)
            continue
        module = importlib.import_module(f".{command.module}", __package__)
        own = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=inspect.getdoc(module),
            formatter_class=HelpFormatter,
        )
        module.add_arguments(own)
        own.set_defaults(run=module.run)
    return made
