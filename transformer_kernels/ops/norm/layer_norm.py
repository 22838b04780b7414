# SPDX-License-Identifier: MIT
"""layer_norm and add_layer_norm."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from .._public import overridable, overridable_as
from ._norm import is_one, over_dimensions
from ._ops import declare_norm

LAYER_NORM = declare_norm(
    "layer_norm",
    center=True,
    replaces=(F.layer_norm, nn.LayerNorm),
    text="(x - mean(x)) / sqrt(var(x) + eps) * weight + bias",
)
_call, _add_call = LAYER_NORM.alone.call, LAYER_NORM.add.call


@overridable
def layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_weight: bool = False,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.layer_norm`, with ``zero_centered_weight`` and ``backend``.

    Args:
        input: a floating-point tensor, of any strides.
        normalized_shape: the last dimensions of ``input``, which are normalised together.
        weight: scales, in the shape ``normalized_shape``; of ``input``'s dtype or float32.
        bias: offsets, of ``weight``'s dtype.
        eps: added to the variance.
        zero_centered_weight: scale by ``1 + weight``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    The result has ``input``'s dtype, under autocast too. Statistics are always float32 (float64 for
    float64), so float32 weights beside bfloat16 activations need no cast.

    >>> x, weight, bias = torch.randn(2, 5, 768), torch.ones(768), torch.zeros(768)
    >>> y = tfk.functional.layer_norm(x, (768,), weight, bias)
    >>> torch.allclose(y, torch.nn.functional.layer_norm(x, (768,), weight, bias), atol=1e-5)
    True
    """
    if is_one(input, normalized_shape, weight, bias):
        return _call(input, weight, bias, eps, zero_centered_weight, backend)
    return over_dimensions(
        LAYER_NORM.alone,
        (input,),
        normalized_shape,
        weight,
        bias,
        eps,
        zero_centered_weight,
        backend,
    )


@overridable_as("layer_norm")
def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_weight: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Computes ``(layer_norm(x + residual), x + residual)`` in one pass over memory.

    ``residual`` has the shape and dtype of ``x``; the other arguments are those of
    :func:`layer_norm`. Gradients of both results reach ``x`` and ``residual``.

    >>> x, residual, weight = torch.randn(2, 5, 768), torch.randn(2, 5, 768), torch.ones(768)
    >>> y, residual = tfk.functional.add_layer_norm(x, residual, (768,), weight)
    >>> y.shape, residual.shape
    (torch.Size([2, 5, 768]), torch.Size([2, 5, 768]))
    """
    if is_one(x, normalized_shape, weight, bias):
        return _add_call(x, residual, weight, bias, eps, zero_centered_weight, backend)
    return over_dimensions(
        LAYER_NORM.add,
        (x, residual),
        normalized_shape,
        weight,
        bias,
        eps,
        zero_centered_weight,
        backend,
    )
