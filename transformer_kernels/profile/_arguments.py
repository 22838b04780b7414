# SPDX-License-Identifier: MIT
"""Checks of the profilers' arguments; errors read as those of ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .._errors import ArgumentTypeError, ArgumentValueError, as_integer, as_number

Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, and arguments by keyword


def as_device(who: str, device: Any) -> torch.device:
    """The device of that name, which has to be present; by default the GPU, or the CPU without
    one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentValueError(
            f"{who}: device is {device!r}, expected 'cpu' or 'cuda'"
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise ArgumentValueError(f"{who}: device is '{found}', expected 'cpu' or 'cuda'")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentValueError(f"{who}: device is '{found}', expected one that PyTorch sees")
    return found


def device_of(who: str, inputs: Any, device: Any = None) -> torch.device:
    """The device that is named, or else that of the first tensor among the inputs."""
    if device is not None:
        return as_device(who, device)
    tensors = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
    first = next(tensors, None)
    if first is None and torch.cuda.is_available():
        raise ArgumentValueError(f"{who}: inputs has no tensor, expected one, or device= beside it")
    return torch.device("cpu") if first is None else as_device(who, first.device)


def as_call(who: str, name: str, function: Any) -> None:
    if not callable(function):
        raise ArgumentTypeError(
            f"{who}: {name} is {type(function).__name__}, expected a function or a module"
        )


def as_inputs(who: str, inputs: Any) -> Inputs:
    """Accepts a tensor, a sequence of arguments, or a dict of arguments by name."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
        return tuple(inputs), {}
    raise ArgumentTypeError(
        f"{who}: inputs is {type(inputs).__name__}, expected a Tensor, a sequence or a dict"
    )


def at_least(who: str, name: str, value: Any, least: int) -> int:
    found = int(as_integer(who, name, value))
    if found < least:
        raise ArgumentValueError(f"{who}: {name} is {found}, expected at least {least}")
    return found


def as_seconds(who: str, name: str, value: Any) -> float:
    found = float(as_number(who, name, value))
    if not 0 <= found < float("inf"):
        raise ArgumentValueError(f"{who}: {name} is {found:g}, expected at least 0")
    return found


def one_of(who: str, name: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        expected = " or ".join(map(repr, known))
        raise ArgumentValueError(f"{who}: {name} is {value!r}, expected {expected}")
    return str(value)
