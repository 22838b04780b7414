# SPDX-License-Identifier: MIT
"""Runs the norms over any number of dimensions; the ops run over one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._errors import ArgumentValueError
from ..._torch import ragged_dim
from .._declare import Op
from .._declare_arguments import as_tuple, one_or_all
from .._declare_checks import as_declared
from .._declare_kinds import has_kinds, run_kinds
from .._kinds import is_jagged
from ._arguments import check_shapes


def is_one(x: Any, normalized_shape: Any, weight: Any, bias: Any) -> bool:
    """Whether only the last dimension of ``x`` is normalised and parameters are vectors of it, so
    that the op takes them as they are."""
    try:
        return (
            len(normalized_shape) == 1
            and type(normalized_shape[0]) is int
            and bool(x.shape[-1] == normalized_shape[0])
            and (weight is None or weight.dim() == 1)
            and (bias is None or bias.dim() == 1)
        )
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return False


def over_dimensions(
    op: Op, rows: tuple[Tensor, ...], normalized_shape: Any, weight: Tensor | None,
    bias: Tensor | None, eps: Any, zero_centered: Any, backend: str,
) -> Any:  # fmt: skip
    """Runs ``op``; ``rows`` are its x, and its residual if it has one."""
    x = rows[0]
    shape = check_shapes(op.title, rows, normalized_shape, weight, bias)
    arguments = as_declared(op, (*rows, weight, bias, eps, zero_centered))
    rows = arguments[: len(rows)]
    x, (weight, bias, eps, zero_centered) = rows[0], arguments[len(rows) :]
    if has_kinds(op, arguments):
        return _of_kinds(op, arguments, shape, backend)
    for argument, value in zip(op.arguments, rows, strict=False):
        argument.check(op.title, value, {"x": x})

    def vector(parameter: Tensor | None) -> Tensor | None:
        return None if parameter is None else parameter.flatten()

    folded = [value.flatten(-len(shape)) for value in rows]
    results = op.call(*folded, vector(weight), vector(bias), eps, zero_centered, backend)
    return one_or_all([result.reshape(x.shape) for result in as_tuple(results)])


def _of_kinds(op: Op, arguments: tuple[Any, ...], shape: tuple[int, ...], backend: str) -> Any:
    x = arguments[0]
    if is_jagged(x) and x.dim() - len(shape) <= ragged_dim(x):
        raise ArgumentValueError(
            f"{op.title}: normalized_shape is {shape}, expected dimensions after the ragged one of"
            f" x, which is {ragged_dim(x)}"
        )

    def call(*local: Any, backend: str) -> Any:
        *rows, weight, bias, eps, zero_centered = local
        return over_dimensions(op, tuple(rows), shape, weight, bias, eps, zero_centered, backend)

    return run_kinds(op, arguments, backend, call, len(shape))
