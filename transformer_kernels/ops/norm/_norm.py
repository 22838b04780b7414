# SPDX-License-Identifier: MIT
"""Calls of the norms that take any argument: backends, shapes, messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import MAX_RANK, ArgumentValueError, translate
from ..._library import require_backend
from ..._torch import is_transformed, jagged_like, ragged_dim
from .._kinds import is_jagged, jagged_values
from .._sharding import Shards, is_sharded
from . import _formula
from ._arguments import check_residual, check_rest, check_shapes, check_types, numbers
from ._autograd import AddNorm, Norm, apply_add_norm, apply_norm, define_public
from ._kernels import Kernels, direct_kernels, raw_kernels

Pair = tuple[Tensor, Tensor]


class NormOp(NamedTuple):
    """A member of the family."""

    name: str
    raw: Kernels
    direct: Kernels  # the same, for eager calls
    triton: Callable[[], Kernels]  # imports Triton on first use
    public: Any


def define(name: str, center: bool, triton: Callable[[], Kernels]) -> NormOp:
    """Register the member's ops."""
    raw = raw_kernels(name, center)
    return NormOp(name, raw, direct_kernels(raw), triton, define_public(name, raw))


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _kernels(op: NormOp, backend: str) -> Kernels | None:
    """None stands for the formula. It also serves what needs every derivative."""
    if backend == "reference" or is_transformed():
        return None
    if backend == "triton":
        return op.triton()
    return op.raw if torch.compiler.is_compiling() else op.direct


def _call(
    op: NormOp, x: Tensor, weight: Any, bias: Any, eps: float, zero_centered: bool, backend: str
) -> Tensor:
    kernels = _kernels(op, backend)
    if kernels is None:
        stats = _formula.statistics(x, eps, op.raw.center)
        return _formula.affine(x, stats, weight, bias, zero_centered)
    if not _needs_gradient(x, weight, bias):
        return kernels.inference(x, weight, bias, eps, zero_centered)
    if torch.compiler.is_exporting():
        return op.public(x, weight, bias, eps, zero_centered)
    apply = Norm.apply if torch.compiler.is_compiling() else apply_norm
    return apply(x, weight, bias, eps, zero_centered, kernels)


def _add_call(
    op: NormOp, x: Tensor, residual: Tensor, weight: Any, bias: Any, eps: float,
    zero_centered: bool, backend: str,
) -> Pair:  # fmt: skip
    kernels = _kernels(op, backend)
    if kernels is None:
        s = x + residual
        stats = _formula.statistics(s, eps, op.raw.center)
        return _formula.affine(s, stats, weight, bias, zero_centered), s
    if not _needs_gradient(x, residual, weight, bias):
        y, s, *_ = kernels.add_forward(x, residual, weight, bias, eps, zero_centered)
        return y, s
    if torch.compiler.is_exporting():
        s = x + residual
        return op.public(s, weight, bias, eps, zero_centered), s
    if residual is x:
        # torch.compile loses track of a tensor that a Function takes twice.
        residual = x.view_as(x)
    apply = AddNorm.apply if torch.compiler.is_compiling() else apply_add_norm
    return apply(x, residual, weight, bias, eps, zero_centered, kernels)


def _packed(parameter: Tensor | None) -> bool:
    return parameter is None or parameter.is_contiguous()


def explain(
    op: NormOp, error: RuntimeError, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> None:
    """Raise what ``error`` of a direct call means, unless ``norm`` can do better by copying."""
    check_types(op.name, {"x": x, "weight": weight, "bias": bias})
    if is_jagged(x) or is_sharded(x, weight, bias):
        return
    if x.dim() <= MAX_RANK and _packed(weight) and _packed(bias):
        raise translate(op.name, error) from None


def _vector(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.flatten().contiguous()


def _rows(x: Tensor, dims: int) -> Tensor:
    """``x`` with its last ``dims`` dimensions as one, and of a rank that C++ takes."""
    rows = x if dims == 1 else x.flatten(-dims)
    return rows if rows.dim() <= MAX_RANK else rows.flatten(0, -2)


def _check_jagged(op: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if x.dim() - len(shape) <= ragged_dim(x):
        raise ArgumentValueError(
            f"{op}: normalized_shape is {shape}, expected dimensions after the ragged one of x,"
            f" which is {ragged_dim(x)}"
        )


def _shards(op: str, x: Tensor, shape: tuple[int, ...]) -> Shards:
    return Shards(op, x, lambda dim: dim < x.dim() - len(shape))


def norm(
    op: NormOp, x: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None,
    eps: float, zero_centered: bool, backend: str,
) -> Tensor:  # fmt: skip
    shape = check_shapes(op.name, x, normalized_shape, weight, bias)
    eps, zero_centered = numbers(op.name, eps, zero_centered)
    if is_jagged(x):
        _check_jagged(op.name, x, shape)
        values = jagged_values(op.name, "x", x)
        return jagged_like(x, norm(op, values, shape, weight, bias, eps, zero_centered, backend))
    if is_sharded(x, weight, bias):
        shards = _shards(op.name, x, shape)
        w, b = shards.beside("weight", weight), shards.beside("bias", bias)
        y = norm(op, shards.rows("x", x), shape, w, b, eps, zero_centered, backend)
        return shards.like_x(y)
    check_rest(op.name, x, weight, bias)
    require_backend(op.name, backend, x)
    dims = len(shape)
    y = _call(op, _rows(x, dims), _vector(weight), _vector(bias), eps, zero_centered, backend)
    return y.reshape(x.shape)


def add_norm(
    op: NormOp, x: Tensor, residual: Tensor, normalized_shape: Any, weight: Tensor | None,
    bias: Tensor | None, eps: float, zero_centered: bool, backend: str,
) -> Pair:  # fmt: skip
    """The same of a sum: (y, sum)."""
    shape = check_shapes(op.name, x, normalized_shape, weight, bias)
    check_residual(op.name, x, residual)
    eps, zero_centered = numbers(op.name, eps, zero_centered)
    if is_jagged(x):
        _check_jagged(op.name, x, shape)
        rows = jagged_values(op.name, "x", x)
        r = jagged_values(op.name, "residual", residual)
        y, s = add_norm(op, rows, r, shape, weight, bias, eps, zero_centered, backend)
        return jagged_like(x, y), jagged_like(x, s)
    if is_sharded(x, residual, weight, bias):
        shards = _shards(op.name, x, shape)
        rows, r = shards.rows("x", x), shards.rows("residual", residual)
        w, b = shards.beside("weight", weight), shards.beside("bias", bias)
        y, s = add_norm(op, rows, r, shape, w, b, eps, zero_centered, backend)
        return shards.like_x(y), shards.like_x(s)
    check_rest(op.name, x, weight, bias)
    require_backend(op.name, backend, x)
    dims = len(shape)
    y, s = _add_call(
        op, _rows(x, dims), _rows(residual, dims), _vector(weight), _vector(bias), eps,
        zero_centered, backend,
    )  # fmt: skip
    return y.reshape(x.shape), s.reshape(x.shape)
