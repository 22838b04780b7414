# SPDX-License-Identifier: MIT
"""layer_norm in Triton, with the signatures of the raw ops."""

from __future__ import annotations

from torch import Tensor

from . import _norm_triton

_OP, _CENTER = "layer_norm", True


def layer_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, zero_centered: bool
) -> Tensor:
    return _norm_triton.forward(
        _OP, _CENTER, x, None, weight, bias, eps, zero_centered, keep=False
    )[0]


def layer_norm_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    y, _, mean, rstd = _norm_triton.forward(
        _OP, _CENTER, x, None, weight, bias, eps, zero_centered, keep=True
    )
    return y, mean, rstd


def add_layer_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    y, s, mean, rstd = _norm_triton.forward(
        _OP, _CENTER, x, residual, weight, bias, eps, zero_centered, keep=True
    )
    return y, s, mean, rstd


def layer_norm_backward(
    dy: Tensor, dsum: Tensor | None, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    zero_centered: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _norm_triton.backward(
        _OP, _CENTER, dy, dsum, x, mean, rstd, weight, zero_centered, need_dweight, need_dbias
    )
