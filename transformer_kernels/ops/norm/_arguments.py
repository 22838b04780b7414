# SPDX-License-Identifier: MIT
"""Argument checks of the norms, for every path that does not go straight to C++.

The messages are those of the C++ checks, which the direct path relies on.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._errors import (
    FLOATING,
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    as_number,
    check_floating,
    check_tensors,
    dtype_name,
    not_floating,
    or_float32,
)
from .._kinds import require_memory


def _size(n: Any) -> Any:
    """A size of any integer type, as PyTorch takes it."""
    if isinstance(n, bool):
        raise TypeError
    return n if isinstance(n, torch.SymInt) else operator.index(n)


def _shape(op: str, normalized_shape: Any) -> tuple[int, ...]:
    try:
        if isinstance(normalized_shape, str) or not isinstance(normalized_shape, Sequence):
            raise TypeError
        shape = tuple(map(_size, normalized_shape))
    except TypeError:
        raise ArgumentTypeError(
            f"{op}: normalized_shape is {normalized_shape!r}, expected a sequence of ints"
        ) from None
    if not shape:
        raise ArgumentValueError(f"{op}: normalized_shape is empty, expected at least 1 dimension")
    return shape


def _check_parameter_shape(op: str, name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape == shape:
        return
    if value.dim() == len(shape) == 1:
        raise ArgumentValueError(
            f"{op}: {name} has {value.shape[0]} elements, expected {shape[0]}"
            " (the last dimension of x)"
        )
    raise ArgumentValueError(
        f"{op}: {name} has shape {tuple(value.shape)}, expected {shape} (normalized_shape)"
    )


def _check_parameter_dtype(
    op: str, name: str, dtype: torch.dtype, x: torch.dtype, first: torch.dtype
) -> None:
    allowed = (x,) if x is torch.float64 else (x, torch.float32)
    if dtype not in allowed:
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(dtype)}, expected {dtype_name(x)}{or_float32(x)}"
            " (the dtype of x)"
        )
    if dtype is not first:
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(dtype)}, expected {dtype_name(first)}"
            " (all parameters and their gradients share one dtype)"
        )


def _check_device(op: str, name: str, value: Tensor, x: Tensor) -> None:
    if value.device != x.device:
        raise ArgumentValueError(f"{op}: {name} is on {value.device}, expected {x.device}")


def check_types(op: str, tensors: dict[str, Any]) -> None:
    """Raise where an argument is no tensor, or none that has memory."""
    for name in ("x", "residual"):
        if name in tensors and tensors[name] is None:
            raise ArgumentTypeError(f"{op}: {name} is NoneType, expected a Tensor")
    check_tensors(op, tensors)
    require_memory(op, tensors, jagged=("x", "residual"))


def check_shapes(
    op: str, x: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None
) -> tuple[int, ...]:
    """``normalized_shape`` as a tuple, when x and the parameters fit it."""
    check_types(op, {"x": x, "weight": weight, "bias": bias})
    shape = _shape(op, normalized_shape)
    if x.dim() < len(shape) or x.shape[x.dim() - len(shape) :] != shape:
        raise ArgumentValueError(
            f"{op}: x has shape {tuple(x.shape)}, expected"
            f" (..., {', '.join(map(str, shape))}) (normalized_shape)"
        )
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            _check_parameter_shape(op, name, value, shape)
    return shape


def numbers(op: str, eps: Any, zero_centered: Any) -> tuple[Any, bool]:
    """Both in the types of the kernels, from any that PyTorch takes."""
    return as_number(op, "eps", eps), as_flag(op, "zero_centered_weight", zero_centered)


def check_rest(op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """Dtypes and devices."""
    check_floating(op, "x", x)
    parameters = {"weight": weight, "bias": bias}
    present = {name: value for name, value in parameters.items() if value is not None}
    for name, value in present.items():
        _check_device(op, name, value, x)
        if value.dtype not in FLOATING:
            raise not_floating(op, name, value.dtype)
        first = next(iter(present.values()))
        _check_parameter_dtype(op, name, value.dtype, x.dtype, first.dtype)


def check_residual(op: str, x: Tensor, residual: Tensor) -> None:
    check_types(op, {"residual": residual})
    _check_device(op, "residual", residual, x)
    if residual.dtype is not x.dtype:
        raise ArgumentTypeError(
            f"{op}: residual is {dtype_name(residual.dtype)}, expected {dtype_name(x.dtype)}"
            " (the dtype of x)"
        )
    if residual.shape != x.shape:
        raise ArgumentValueError(
            f"{op}: residual has shape {tuple(residual.shape)}, expected {tuple(x.shape)}"
            " (the shape of x)"
        )
