# SPDX-License-Identifier: MIT
"""Fuses the model that a function makes, and shows the plan: what runs where, and what does not.

$ transformer-kernels fuse examples.python.fuse_a_model:gpt2 --html plan.html
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from .._errors import ArgumentValueError
from .fuser import OperatorFuser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "factory", metavar="MODULE:FACTORY",
        help="a function without arguments that returns a model, or a model and the arguments of a"
        " call: a dict or a tuple; modules of the current folder are found, too",
    )  # fmt: skip
    parser.add_argument("--patterns", help="of these alone: norm,attention; default: all")
    parser.add_argument("--no-measure", action="store_true", help="do not time the sites")
    parser.add_argument(
        "--predict", action="store_true", help="predict times from those of operations, too"
    )
    parser.add_argument(
        "--skip-logits", action="store_true", help="training computes its loss without logits"
    )
    parser.add_argument("--graphs", action="store_true", help="replay blocks as CUDA graphs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the plan as a page")


def run(arguments: argparse.Namespace) -> int:
    model, inputs = _made(arguments.factory)
    patterns = None if arguments.patterns is None else arguments.patterns.split(",")
    fuser = OperatorFuser(
        skip_logits=arguments.skip_logits, measure=not arguments.no_measure,
        predict=arguments.predict, graphs=arguments.graphs, patterns=patterns,
    )  # fmt: skip
    plan = fuser.fuse(model, inputs)
    print(plan)
    if arguments.json is not None:
        arguments.json.write_text(plan.to_json(), encoding="utf-8")
    if arguments.html is not None:
        arguments.html.write_text(plan.to_html(), encoding="utf-8")
    return 0


def _made(text: str) -> tuple[nn.Module, Any]:
    """The model of a factory, and the arguments that it gives or None."""
    name, _, factory = text.partition(":")
    if not name or not factory:
        raise ArgumentValueError(f"fuse: factory is {text!r}, expected MODULE:FACTORY")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(name), factory)()
    except (ImportError, AttributeError) as error:
        raise ArgumentValueError(
            f"fuse: factory is {text!r}, expected one that runs: {error}"
        ) from error
    model, inputs = made if _is_pair(made) else (made, None)
    if not isinstance(model, nn.Module):
        raise ArgumentValueError(
            f"fuse: {text} returns {type(model).__name__}, expected an nn.Module"
        )
    return model, inputs


def _is_pair(made: Any) -> bool:
    return isinstance(made, Sequence) and len(made) == 2
