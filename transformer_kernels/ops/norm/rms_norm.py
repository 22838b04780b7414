# SPDX-License-Identifier: MIT
"""rms_norm and add_rms_norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._declare import Op
from .._dtype import accumulate_dtype
from .._kinds import require_memory
from .._public import overridable, overridable_as
from ._arguments import check_shapes
from ._norm import is_one, over_dimensions
from ._ops import declare_norm

RMS_NORM = declare_norm(
    "rms_norm",
    center=False,
    replaces=(F.rms_norm, nn.RMSNorm),
    text="x / sqrt(mean(x ** 2) + eps) * weight + bias",
)
_call, _add_call = RMS_NORM.alone.call, RMS_NORM.add.call


def _is_plain(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float | None) -> bool:
    """Whether the op takes the arguments as they are."""
    return (
        eps is not None
        and is_one(x, normalized_shape, weight, bias)
        and (weight is None or weight.dtype is x.dtype)
    )


def _like_torch(
    op: Op, rows: tuple[Tensor, ...], normalized_shape: Any, weight: Tensor | None,
    bias: Tensor | None, eps: float | None, *options: Any,
) -> Any:  # fmt: skip
    """Runs calls that are not plain. As in PyTorch, ``eps`` has a default, and weights have any
    dtype: those without a kernel are cast."""
    x = rows[0]
    one = is_one(x, normalized_shape, weight, bias)
    if not one:
        check_shapes(op.title, rows, normalized_shape, weight, bias)
    arithmetic = accumulate_dtype(x)
    if eps is None:
        eps = torch.finfo(arithmetic).eps
    if weight is not None and weight.dtype not in (x.dtype, arithmetic):
        require_memory(op.title, {"weight": weight, "bias": bias})
        weight = weight.to(arithmetic)
        bias = None if bias is None else bias.to(arithmetic)
    if one:
        return op.call(*rows, weight, bias, eps, *options)
    return over_dimensions(op, rows, normalized_shape, weight, bias, eps, *options)


@overridable
def rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    zero_centered_weight: bool = False,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.rms_norm`, with a bias and the options of :func:`layer_norm`.

    Args:
        input: a floating-point tensor, of any strides.
        normalized_shape: the last dimensions of ``input``, which are normalised together.
        weight: scales, in the shape ``normalized_shape``; of ``input``'s dtype or float32.
        eps: added to the mean of squares.
        bias: offsets, of ``weight``'s dtype.
        zero_centered_weight: scale by ``1 + weight``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    The default of ``eps`` is the machine epsilon of the arithmetic: float32's, or float64's for
    float64. A weight of any other dtype is cast to the arithmetic's.

    >>> x, weight = torch.randn(2, 5, 4096, dtype=torch.bfloat16), torch.ones(4096)
    >>> y = tfk.functional.rms_norm(x, (4096,), weight, 1e-6)  # a float32 weight needs no cast
    >>> y.dtype
    torch.bfloat16
    """
    if _is_plain(input, normalized_shape, weight, bias, eps):
        return _call(input, weight, bias, eps, zero_centered_weight, backend)
    return _like_torch(
        RMS_NORM.alone, (input,), normalized_shape, weight, bias, eps, zero_centered_weight, backend
    )


@overridable_as("rms_norm")
def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    zero_centered_weight: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Computes ``(rms_norm(x + residual), x + residual)`` in one pass over memory.

    ``residual`` has the shape and dtype of ``x``; the other arguments are those of
    :func:`rms_norm`. Gradients of both results reach ``x`` and ``residual``.

    >>> x, residual, weight = torch.randn(2, 5, 64), torch.randn(2, 5, 64), torch.ones(64)
    >>> y, total = tfk.functional.add_rms_norm(x, residual, (64,), weight)
    >>> torch.equal(total, x + residual)
    True
    """
    if _is_plain(x, normalized_shape, weight, bias, eps):
        return _add_call(x, residual, weight, bias, eps, zero_centered_weight, backend)
    return _like_torch(
        RMS_NORM.add,
        (x, residual),
        normalized_shape,
        weight,
        bias,
        eps,
        zero_centered_weight,
        backend,
    )
