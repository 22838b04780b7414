# SPDX-License-Identifier: MIT
"""The norms in PyTorch's own calls. If parameters are wider than x, the norm runs in their
dtype."""

from __future__ import annotations

from torch import Tensor

from ... import _torch
from .._declare import Formula


def _scale(weight: Tensor | None, zero_centered: bool) -> Tensor | None:
    return weight + 1 if weight is not None and zero_centered else weight


def _as(parameter: Tensor | None, x: Tensor) -> Tensor:
    return x if parameter is None else x.to(parameter.dtype)


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, zero_centered: bool
) -> Tensor:
    scale = _scale(weight, zero_centered)
    wide = _as(bias if scale is None else scale, x)
    return _torch.layer_norm(wide, x.shape[-1:], scale, bias, eps).to(x.dtype)


def rms_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, zero_centered: bool
) -> Tensor:
    scale = _scale(weight, zero_centered)
    y = _torch.rms_norm(_as(scale, x), x.shape[-1:], scale, eps)
    return (y if bias is None else y + bias).to(x.dtype)


def of_sum(norm: Formula) -> Formula:
    """Makes a function that returns (y, sum) of x and a residual."""

    def stock(x: Tensor, residual: Tensor, *options: object) -> tuple[Tensor, Tensor]:
        s = x + residual
        return norm(s, *options), s

    return stock


def behind_dropout(norm: Formula) -> Formula:
    """Makes a function that returns (y, sum) of dropout(x + bias) and a residual."""

    def stock(
        x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor | None,
        bias: Tensor | None, seed: Tensor | None, p: float, eps: float,  # noqa: ARG001
        zero_centered: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        branch = x if x_bias is None else x + x_bias
        s = (residual + _torch.dropout(branch, p)).to(residual.dtype)
        return norm(s, weight, bias, eps, zero_centered).to(x.dtype), s

    return stock
