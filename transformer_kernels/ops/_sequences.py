# SPDX-License-Identifier: MIT
"""Sequences of different lengths in one tensor: C++'s checks of ``cu_seqlens``, for other
backends."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, dtype_name
from .._torch import has_memory


def is_readable(x: Tensor | None) -> bool:
    """Whether reading its numbers neither waits for a device nor breaks a graph."""
    return x is None or (x.is_cpu and has_memory(type(x)) and not torch.compiler.is_compiling())


def check_cu_seqlens(op: str, name: str, x: Tensor, rows: int, of: str) -> None:
    """Checks that sequence b holds rows ``x[b]`` to ``x[b + 1] - 1`` of the ``rows`` rows of
    ``of``.

    Raises:
        ArgumentTypeError, ArgumentValueError: the check fails; the message is C++'s.
    """
    if x.dtype is not torch.int32:
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(x.dtype)}, expected int32 (rows of sequences)"
        )
    if x.dim() != 1 or x.numel() == 0 or not x.is_contiguous():
        raise ArgumentValueError(
            f"{op}: {name} has {x.dim()} dimensions and {x.numel()} elements, expected"
            " contiguous memory of one dimension, one more than sequences"
        )
    if is_readable(x):
        _check_numbers(f"{op}: {name}", x.tolist(), rows, of)


def _check_numbers(subject: str, at: list[int], rows: int, of: str) -> None:
    if at[0] != 0:
        raise ArgumentValueError(f"{subject} starts with {at[0]}, expected 0")
    for a, b in itertools.pairwise(at):
        if a > b:
            raise ArgumentValueError(f"{subject} falls from {a} to {b}, expected ascending numbers")
    if at[-1] > rows:
        raise ArgumentValueError(
            f"{subject} ends with {at[-1]}, expected at most {rows} (the rows of {of})"
        )
