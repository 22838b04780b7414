# SPDX-License-Identifier: MIT
"""layer_norm and add_layer_norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..._library import has_kernels, is_transformed
from . import _norm
from ._autograd import apply_norm
from ._kernels import Kernels

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling


def _triton_kernels() -> Kernels:
    from . import layer_norm_triton as kernels

    return Kernels(
        center=True,
        inference=kernels.layer_norm_inference,
        forward=kernels.layer_norm_forward,
        add_forward=kernels.add_layer_norm_forward,
        backward=kernels.layer_norm_backward,
    )


_OP = _norm.define("layer_norm", center=True, triton=_triton_kernels)
_DIRECT = _OP.direct
_inference = _DIRECT.inference


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
        weight: scales; of ``input``'s dtype or float32, in the shape ``normalized_shape``.
        bias: offsets; of ``weight``'s dtype.
        eps: added to the variance; not negative.
        zero_centered_weight: scale by ``1 + weight``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    The result has ``input``'s dtype, under autocast too: statistics are float32 either way
    (float64 for float64), so float32 weights beside bfloat16 activations need no cast.
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            layer_norm, (input, weight, bias), input, normalized_shape, weight=weight, bias=bias,
            eps=eps, zero_centered_weight=zero_centered_weight, backend=backend,
        )  # fmt: skip
    # Straight to the kernel where nothing needs a second look; C++ checks the rest.
    try:
        if (
            has_kernels
            and backend == "auto"
            and len(normalized_shape) == 1
            and input.shape[-1] == normalized_shape[0]
            and (weight is None or weight.dim() == 1)
            and not is_transformed()
            and not _is_compiling()
        ):
            if _is_grad_enabled() and (
                input.requires_grad
                or (weight is not None and weight.requires_grad)
                or (bias is not None and bias.requires_grad)
            ):
                return apply_norm(input, weight, bias, eps, zero_centered_weight, _DIRECT)
            return _inference(input, weight, bias, eps, zero_centered_weight)
    except RuntimeError as error:
        _norm.explain(_OP, error, input, weight, bias, eps)
    except (AttributeError, IndexError, TypeError):
        pass  # norm() says what is wrong
    return _norm.norm(
        _OP, input, normalized_shape, weight, bias, eps, zero_centered_weight, backend
    )


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
    """``(layer_norm(x + residual), x + residual)`` in one pass over memory.

    ``residual`` has the shape and dtype of ``x``; the other arguments are those of
    :func:`layer_norm`. Gradients of both results reach ``x`` and ``residual``.
    """
    tensors = (x, residual, weight, bias)
    if has_torch_function_variadic(*tensors):
        return handle_torch_function(
            add_layer_norm, tensors, x, residual, normalized_shape, weight=weight, bias=bias,
            eps=eps, zero_centered_weight=zero_centered_weight, backend=backend,
        )  # fmt: skip
    return _norm.add_norm(
        _OP, x, residual, normalized_shape, weight, bias, eps, zero_centered_weight, backend
    )
