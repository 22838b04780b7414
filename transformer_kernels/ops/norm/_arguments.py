# SPDX-License-Identifier: MIT
"""Checks the norms' arguments that the declared ops lack: several dimensions normalised
together."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, check_tensors, is_integer, shown
from .._kinds import require_memory


def _size(n: Any) -> Any:
    """A size of any integer type that PyTorch accepts."""
    if isinstance(n, bool):
        raise TypeError
    return n if isinstance(n, torch.SymInt) else operator.index(n)


def _shape_hint(normalized_shape: Any) -> str:
    """For the arguments in the order of libraries that take no shape, and for one size."""
    if isinstance(normalized_shape, torch.Tensor):
        return " (did you mean weight.shape, and weight after it?)"
    return f" (did you mean ({normalized_shape},)?)" if is_integer(normalized_shape) else ""


def _shape(op: str, normalized_shape: Any) -> tuple[int, ...]:
    try:
        if isinstance(normalized_shape, str) or not isinstance(normalized_shape, Sequence):
            raise TypeError
        shape = tuple(map(_size, normalized_shape))
    except TypeError:
        raise ArgumentTypeError(
            f"{op}: normalized_shape is {shown(normalized_shape)}, expected a sequence of ints"
            f"{_shape_hint(normalized_shape)}"
        ) from None
    if not shape:
        raise ArgumentValueError(f"{op}: normalized_shape is empty, expected at least 1 dimension")
    return shape


def check_shapes(
    op: str,
    rows: Sequence[Tensor],
    normalized_shape: Any,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[int, ...]:
    """Checks that x, the first of ``rows``, and the parameters fit ``normalized_shape``; returns it
    as a tuple."""
    parameters = {"weight": weight, "bias": bias}
    shape = _shape(op, normalized_shape)
    tensors = dict(zip(("x", "residual"), rows, strict=False)) | parameters
    check_tensors(op, tensors, *parameters)
    require_memory(op, tensors, jagged=("x", "residual"))
    x = rows[0]
    if x.shape[-len(shape) :] != shape:
        raise ArgumentValueError(
            f"{op}: x has shape {tuple(x.shape)}, expected"
            f" (..., {', '.join(map(str, shape))}) (normalized_shape)"
        )
    for name, value in parameters.items():
        # The op itself checks the elements of vectors.
        if value is not None and value.shape != shape and not value.dim() == len(shape) == 1:
            raise ArgumentValueError(
                f"{op}: {name} has shape {tuple(value.shape)}, expected {shape} (normalized_shape)"
            )
    return shape
