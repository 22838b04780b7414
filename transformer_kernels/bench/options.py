# SPDX-License-Identifier: MIT
"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from transformer_kernels.measure import schema
from transformer_kernels.measure.schema import Result

DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto is cuda where PyTorch sees a device",
    )  # fmt: skip


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that prints a table and may keep its figures."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in this file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the figures in this folder")
    parser.add_argument("--quiet", action="store_true", help="show no progress, only the table")


def names(text: str) -> list[str]:
    """Reads a list of names that commas separate."""
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str) -> list[int]:
    """Reads a list of positive numbers that commas separate."""
    found = [int(part) for part in names(text)]
    if not found or min(found) < 1:
        raise ValueError
    return found


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is 'cuda', but PyTorch sees no CUDA device")
    return torch.device(name)


def require_known(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{option} is {name!r}, expected one of {', '.join(known)}")


def require_at_least(option: str, value: float, least: float) -> None:
    if value < least:
        raise ValueError(f"{option} is {value}, expected at least {least}")


def keep(result: Result, arguments: argparse.Namespace) -> None:
    """Stores and draws a result where the options of `add_outputs` ask for it."""
    if arguments.json:
        schema.save(result, arguments.json)
    if arguments.plots:
        write_plots(result, arguments.plots)


def write_plots(result: Result, folder: Path) -> None:
    from transformer_kernels.bench import plots  # loads matplotlib

    for path in plots.write(result, folder):
        print(f"wrote {path}")
