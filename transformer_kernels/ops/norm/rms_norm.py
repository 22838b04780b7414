# SPDX-License-Identifier: MIT
"""rms_norm and add_rms_norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from ..._library import has_kernels
from ..._torch import is_transformed, tracing_state
from .._dtype import accumulate_dtype
from .._kinds import ask_overloads, only_jagged
from .._torchscript import graph_op
from . import _norm
from ._arguments import check_shapes
from ._autograd import apply_norm
from ._kernels import Kernels

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling


def _triton_kernels() -> Kernels:
    from . import rms_norm_triton as kernels

    return Kernels(
        center=False,
        inference=kernels.rms_norm_inference,
        forward=kernels.rms_norm_forward,
        add_forward=kernels.add_rms_norm_forward,
        backward=kernels.rms_norm_backward,
    )


_OP = _norm.define("rms_norm", center=False, triton=_triton_kernels)
_DIRECT = _OP.direct
_inference = _DIRECT.inference


def _default_eps(x: Tensor) -> float:
    """PyTorch's: the machine epsilon of the dtype that the arithmetic is in."""
    return torch.finfo(accumulate_dtype(x)).eps


def _like_torch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float | None
) -> tuple[Tensor | None, Tensor | None, float]:
    """PyTorch's rms_norm takes weights of any dtype: those without a kernel are cast."""
    if eps is None:
        eps = _default_eps(x)
    allowed = (x.dtype, accumulate_dtype(x))
    if weight is not None and weight.dtype not in allowed:
        weight = weight.to(allowed[1])
        bias = None if bias is None else bias.to(allowed[1])
    return weight, bias, eps


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

    ``eps`` is by default the machine epsilon of the arithmetic: float32's, or float64's for
    float64. A weight of yet another dtype is cast to that of the arithmetic.
    """
    if has_torch_function_variadic(input, weight, bias):
        if not only_jagged(input, weight, bias):
            return ask_overloads(
                "rms_norm", rms_norm, {"x": input, "weight": weight, "bias": bias}, input,
                normalized_shape, weight=weight, eps=eps,
                bias=bias, zero_centered_weight=zero_centered_weight, backend=backend,
            )  # fmt: skip
    elif tracing_state() is not None:
        result: Tensor = _graph_op(
            input, normalized_shape, weight=weight, eps=eps,
            bias=bias, zero_centered_weight=zero_centered_weight, backend=backend,
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
                and (weight is None or (weight.dim() == 1 and weight.dtype is input.dtype))
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
    check_shapes("rms_norm", input, normalized_shape, weight, bias)
    weight, bias, eps = _like_torch(input, weight, bias, eps)
    return _norm.norm(
        _OP, input, normalized_shape, weight, bias, eps, zero_centered_weight, backend
    )


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
    """``(rms_norm(x + residual), x + residual)`` in one pass over memory.

    ``residual`` has the shape and dtype of ``x``; the other arguments are those of
    :func:`rms_norm`. Gradients of both results reach ``x`` and ``residual``.
    """
    if has_torch_function_variadic(x, residual, weight, bias):
        if not only_jagged(x, residual, weight, bias):
            tensors = {"x": x, "residual": residual, "weight": weight, "bias": bias}
            return ask_overloads(
                "rms_norm", add_rms_norm, tensors, x, residual, normalized_shape, weight=weight,
                eps=eps, bias=bias, zero_centered_weight=zero_centered_weight, backend=backend,
            )  # fmt: skip
    elif tracing_state() is not None:
        results: tuple[Tensor, Tensor] = _add_graph_op(
            x, residual, normalized_shape, weight=weight, eps=eps,
            bias=bias, zero_centered_weight=zero_centered_weight, backend=backend,
        )  # fmt: skip
        return results
    check_shapes("rms_norm", x, normalized_shape, weight, bias)
    weight, bias, eps = _like_torch(x, weight, bias, eps)
    return _norm.add_norm(
        _OP, x, residual, normalized_shape, weight, bias, eps, zero_centered_weight, backend
    )


_graph_op = graph_op(rms_norm)
_add_graph_op = graph_op(add_rms_norm)
