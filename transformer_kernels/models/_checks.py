# SPDX-License-Identifier: MIT
"""Checks of the models' arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from .._errors import (
    FLOATING,
    ArgumentIndexError,
    ArgumentTypeError,
    ArgumentValueError,
    check_indices,
    check_tensors,
    dtype_name,
    not_floating,
    shape_text,
)


def one_of(op: str, name: str, value: Any, allowed: Collection[str]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    kind = ArgumentValueError if isinstance(value, str) else ArgumentTypeError
    raise kind(f"{op}: {name} is {value!r}, expected one of {', '.join(map(repr, allowed))}")


def check_config(op: str, config: Any, kind: type) -> None:
    if not isinstance(config, kind):
        raise ArgumentTypeError(
            f"{op}: config is {type(config).__name__}, expected {kind.__name__}"
        )


def check_shape(op: str, name: str, x: Any, *wanted: int | str) -> None:
    """Checks dimensions: ``wanted`` has a size for each, or a word where any size is allowed."""
    check_tensors(op, {name: x})
    fits = x.dim() == len(wanted) and all(
        isinstance(size, str) or size == found for size, found in zip(wanted, x.shape, strict=True)
    )
    if not fits:
        expected = f"({', '.join(map(str, wanted))}{',' if len(wanted) == 1 else ''})"
        raise ArgumentValueError(f"{op}: {name} has shape {shape_text(x)}, expected {expected}")


def check_like(op: str, name: str, x: Tensor, weight: Tensor) -> None:
    """Checks that numbers have the device and dtype of the weight that multiplies them first."""
    check_beside(op, name, x, weight)
    if x.dtype not in FLOATING:
        raise not_floating(op, name, x.dtype)
    if x.dtype is not weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(x.dtype)}, expected {dtype_name(weight.dtype)}"
            " (as the weights)"
        )


def check_beside(op: str, name: str, x: Tensor, weight: Tensor) -> None:
    if x.device != weight.device:
        raise ArgumentValueError(
            f"{op}: {name} is on {x.device}, expected {weight.device} (as the weights)"
        )


def check_range(op: str, name: str, indices: Tensor, size: int, reason: str) -> None:
    """Checks indices on the CPU. Those on a device, or in a graph of torch.compile, are not
    read."""
    check_indices(op, name, indices)
    if not indices.is_cpu or not indices.numel() or torch.compiler.is_compiling():
        return
    least, most = (int(x) for x in torch.aminmax(indices))
    if least < 0 or most >= size:
        wrong = least if least < 0 else most
        raise ArgumentIndexError(
            f"{op}: {name} has the index {wrong}, expected 0 to {size - 1} ({reason})"
        )


def check_targets(op: str, targets: Any, logits: Tensor) -> None:
    check_shape(op, "targets", targets, *logits.shape[:-1])
    check_beside(op, "targets", targets, logits)
