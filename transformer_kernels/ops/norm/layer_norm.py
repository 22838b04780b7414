# SPDX-License-Identifier: MIT
"""layer_norm and add_layer_norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from ..._library import has_kernels
from ..._torch import is_transformed, tracing_state
from .._kinds import ask_overloads, only_jagged
from .._torchscript import graph_op
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
        eps: added to the variance.
        zero_centered_weight: scale by ``1 + weight``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    The result has ``input``'s dtype, under autocast too: statistics are float32 either way
    (float64 for float64), so float32 weights beside bfloat16 activations need no cast.
    """
    if has_torch_function_variadic(input, weight, bias):
        if not only_jagged(input, weight, bias):
            return ask_overloads(
                "layer_norm", layer_norm, {"x": input, "weight": weight, "bias": bias}, input,
                normalized_shape, weight=weight, bias=bias,
                eps=eps, zero_centered_weight=zero_centered_weight, backend=backend,
            )  # fmt: skip
    elif tracing_state() is not None:
        result: Tensor = _graph_op(
            input, normalized_shape, weight=weight, bias=bias,
            eps=eps, zero_centered_weight=zero_centered_weight, backend=backend,
        )  # fmt: skip
        return result
    else:
        # Straight to the kernel where nothing needs a second look; C++ checks the rest.
        try:
            if (
                has_kernels
                and backend == "auto"
                and type(eps) is float
                and type(zero_centered_weight) is bool
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
            _norm.explain(_OP, error, input, weight, bias)
        except (AttributeError, IndexError, TypeError, ValueError):
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
    if has_torch_function_variadic(x, residual, weight, bias):
        if not only_jagged(x, residual, weight, bias):
            tensors = {"x": x, "residual": residual, "weight": weight, "bias": bias}
            return ask_overloads(
                "layer_norm", add_layer_norm, tensors, x, residual, normalized_shape,
                weight=weight, bias=bias, eps=eps, zero_centered_weight=zero_centered_weight,
                backend=backend,
            )  # fmt: skip
    elif tracing_state() is not None:
        results: tuple[Tensor, Tensor] = _add_graph_op(
            x, residual, normalized_shape, weight=weight, bias=bias,
            eps=eps, zero_centered_weight=zero_centered_weight, backend=backend,
        )  # fmt: skip
        return results
    return _norm.add_norm(
        _OP, x, residual, normalized_shape, weight, bias, eps, zero_centered_weight, backend
    )


_graph_op = graph_op(layer_norm)
_add_graph_op = graph_op(add_layer_norm)
