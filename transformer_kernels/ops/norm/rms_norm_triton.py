# SPDX-License-Identifier: MIT
"""rms_norm in Triton, with the signatures of the raw ops."""

from __future__ import annotations

from torch import Tensor

from . import _norm_triton

_OP, _CENTER = "rms_norm", False


def rms_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, zero_centered: bool
) -> Tensor:
    return _norm_triton.forward(
        _OP, _CENTER, x, None, weight, bias, eps, zero_centered, keep=False
    )[0]


def rms_norm_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    y, _, _, rstd = _norm_triton.forward(
        _OP, _CENTER, x, None, weight, bias, eps, zero_centered, keep=True
    )
    return y, rstd


def add_rms_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, s, _, rstd = _norm_triton.forward(
        _OP, _CENTER, x, residual, weight, bias, eps, zero_centered, keep=True
    )
    return y, s, rstd


def rms_norm_backward(
    dy: Tensor, dsum: Tensor | None, x: Tensor, rstd: Tensor, weight: Tensor | None,
    zero_centered: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _norm_triton.backward(
        _OP, _CENTER, dy, dsum, x, None, rstd, weight, zero_centered, need_dweight, need_dbias
    )
