# SPDX-License-Identifier: MIT
"""Writes the script with which a shell completes the program's commands, options and paths.

The script knows all of them by itself: the shell that completes a word starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script of ``shell``, which is one of `SHELLS`; the package shtab writes it."""
    import shtab

    for action in _actions(parser):
        if action.type is Path:
            place: Any = action  # shtab looks for an attribute of this name
            place.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of the parser, and of its commands'."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
