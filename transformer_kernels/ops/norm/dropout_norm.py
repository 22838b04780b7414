# SPDX-License-Identifier: MIT
"""The norms of ``dropout(x + x_bias, p) + residual``, which surround attention and the MLP.

The forward pass computes the sum and normalises it in one pass; the backward pass reads the saved
sum. Dropout is that of :func:`transformer_kernels.functional.dropout`. Under autocast the sums stay
float32 beside 16-bit ``x`` and ``y``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._declare import Kernels, Op
from .._declare_arguments import Flag, Given, Like, Number, Param, Result, Rows, Seed, saved_rows
from .._dtype import accumulate_dtype
from .._parallel import rows
from .._public import overridable
from .._register import declare
from ..pointwise.dropout import (
    P,
    bias_dropout_add_formula,
    bias_dropout_add_gradient,
    drawn,
)
from . import _formula, _stock
from .layer_norm import LAYER_NORM
from .rms_norm import RMS_NORM

_BACKWARD = (
    "(dy, dsum?, sum, {statistics}, x_bias, weight, bias, seed, p, zero_centered_weight,"
    " need_dx_bias, need_dweight, need_dbias) -> dx, dx_bias, dresidual, dweight, dbias"
)


def _triton(center: bool) -> Kernels:
    """Combines dropout's kernels with the norm's."""
    from ..pointwise.dropout_triton import BIAS_DROPOUT_ADD
    from .norm_triton import norm_kernels

    norm, count = norm_kernels(center)[0], 2 if center else 1

    def forward(
        x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor | None,
        bias: Tensor | None, seed: Tensor | None, p: float, eps: float, zero_centered: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        s = BIAS_DROPOUT_ADD.forward(x.to(residual.dtype), x_bias, residual, seed, p)
        y, *stats = norm.forward(s, weight, bias, eps, zero_centered)
        return y.to(x.dtype), s, *stats

    def backward(dy: Tensor, dsum: Tensor | None, s: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        stats, rest = rest[:count], rest[count:]
        x_bias, weight, bias, seed, p, zero_centered, need_dx_bias, *needs = rest
        dresidual, dweight, dbias = norm.backward(
            dy, dsum, s, *stats, weight, bias, zero_centered, *needs
        )
        dx, dx_bias = BIAS_DROPOUT_ADD.backward(dresidual, x_bias, seed, p, need_dx_bias)
        return dx.to(dy.dtype), dx_bias, dresidual, dweight, dbias

    def inference(*arguments: Any) -> tuple[Tensor, ...]:
        return forward(*arguments)[:2]

    return Kernels(forward, backward, inference)


def _declare(member: str, center: bool) -> Op:
    name = f"bias_dropout_add_{member}"
    names = ("mean", "rstd") if center else ("rstd",)

    def formula(
        x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor | None,
        bias: Tensor | None, seed: Tensor | None, p: float, eps: float, zero_centered: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        s = bias_dropout_add_formula(x, x_bias, residual, seed, p)
        stats = _formula.statistics(s, eps, center)
        return _formula.affine(s, stats, weight, bias, zero_centered).to(x.dtype), s

    def gradient(
        dy: Tensor, dsum: Tensor | None, s: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        stats, rest = rest[: len(names)], rest[len(names) :]
        x_bias, weight, bias, seed, p, zero_centered, need_dx_bias, *needs = rest
        dresidual, dweight, dbias = _formula.backward(
            dy, dsum, s, stats, weight, bias, zero_centered, *needs
        )
        dx, dx_bias = bias_dropout_add_gradient(dresidual, x_bias, seed, p, need_dx_bias)
        if x_bias is None or not need_dx_bias:
            dx_bias = dy.new_empty(0)
        return dx.to(dy.dtype), dx_bias, dresidual, dweight, dbias

    def statistics(given: Given) -> Any:
        return _formula.statistics(given["sum"], given["eps"], center)

    return declare(
        name,
        function=f"functional.{name}",
        stock=_stock.behind_dropout(_stock.layer_norm if center else _stock.rms_norm),
        parallel=rows,
        unread=("x_bias", "bias"),
        arguments=(
            Rows("x"), Param("x_bias", own_dtype=True, wide="residual"),
            Like("residual", or_float32=True), Param("weight", wide="residual"),
            Param("bias", wide="residual"), Seed("seed", of_elements=True), P, Number("eps"),
            Flag("zero_centered_weight"),
        ),
        results=(Result("y"), Result("sum", "residual"), *map(saved_rows, names)),
        backward=_BACKWARD.format(statistics=", ".join(names)),
        memory={"dresidual": lambda given: given["sum"].new_empty(given["sum"].shape)},
        has_inference=False,
        formula=formula,
        statistics=statistics,
        gradient=gradient,
        triton=partial(_triton, center),
        text=f"{member}(s), s = residual + dropout(x + x_bias)",
    )  # fmt: skip


DROPOUT_LAYER_NORM = _declare("layer_norm", center=True)
DROPOUT_RMS_NORM = _declare("rms_norm", center=False)


def _run(
    op: Op, without: Op, x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor | None,
    bias: Tensor | None, p: float, training: bool, eps: float, zero_centered: bool,
    seed: Tensor | None, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    seed, p = drawn(op.name, x, p, training, seed)
    y: tuple[Tensor, Tensor]
    alike = getattr(x, "dtype", None) is getattr(residual, "dtype", None)
    if p == 0 and x_bias is None and alike:
        y = without.call(x, residual, weight, bias, eps, zero_centered, backend)
    else:
        y = op.call(x, x_bias, residual, weight, bias, seed, p, eps, zero_centered, backend)
    return y


@overridable
def bias_dropout_add_layer_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    training: bool = True,
    eps: float = 1e-5,
    *,
    zero_centered_weight: bool = False,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Computes ``(layer_norm(s), s)`` with ``s = residual + dropout(x + x_bias, p)``, in one pass.

    If the second result is the next residual, this is the pre-norm block of GPT-2; the first alone
    is the post-norm block of BERT. Gradients of both reach all arguments.

    Args:
        x: a floating-point tensor (..., C), of any strides.
        x_bias: (C), of ``x``'s dtype or float32, added to ``x``; or None.
        residual: has the shape of ``x``, and its dtype or, beside a 16-bit ``x``, float32, as under
            autocast. The first result has ``x``'s dtype, the second the residual's; biases and
            weight are float32 beside a residual wider than ``x``.
        weight: (C), of ``x``'s dtype or float32; or None.
        bias: (C), of ``weight``'s dtype; or None.
        p: the probability that an element is dropped, from 0 to 1.
        training: ``False`` drops nothing.
        eps: added to the variance.
        zero_centered_weight: scale by ``1 + weight``.
        seed: int64 seed and offset, (2,), on the CPU or on the device of ``x``; by default drawn
            from the device's generator.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    >>> x, residual = torch.randn(2, 2, 5, 64)
    >>> x_bias, weight, bias = torch.zeros(64), torch.ones(64), torch.zeros(64)
    >>> y, residual = tfk.functional.bias_dropout_add_layer_norm(
    ...     x, x_bias, residual, weight, bias, p=0.1)
    >>> y.shape
    torch.Size([2, 5, 64])
    """
    return _run(
        DROPOUT_LAYER_NORM, LAYER_NORM.add, x, x_bias, residual, weight, bias, p, training, eps,
        zero_centered_weight, seed, backend,
    )  # fmt: skip


@overridable
def bias_dropout_add_rms_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor | None,
    p: float,
    training: bool = True,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    zero_centered_weight: bool = False,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Computes ``(rms_norm(s), s)`` with ``s = residual + dropout(x + x_bias, p)``, in one pass.

    The arguments are those of :func:`bias_dropout_add_layer_norm`; the default of ``eps`` is the
    machine epsilon of the arithmetic, as in :func:`rms_norm`.

    >>> x, residual = torch.randn(2, 2, 5, 64)
    >>> y, total = tfk.functional.bias_dropout_add_rms_norm(
    ...     x, None, residual, torch.ones(64), p=0.1, training=False)
    >>> torch.equal(total, x + residual)  # nothing is dropped in evaluation
    True
    """
    if eps is None:
        eps = torch.finfo(accumulate_dtype(x)).eps
    return _run(
        DROPOUT_RMS_NORM, RMS_NORM.add, x, x_bias, residual, weight, bias, p, training, eps,
        zero_centered_weight, seed, backend,
    )  # fmt: skip
