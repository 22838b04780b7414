# SPDX-License-Identifier: MIT
"""The norms' formula in PyTorch operations, differentiable any number of times.

    s = x + residual                     (s = x where there is no residual)
    y = (s - mean(s)) * rstd * w + bias  w = weight, 1 + weight or 1; rms_norm subtracts no mean

The two norms differ in a flag, ``center``, and in the statistics that they save for the backward
pass: (mean, rstd) or (rstd,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtype import accumulate_dtype


def statistics(s: Tensor, eps: float, center: bool) -> tuple[Tensor, ...]:
    """Returns (mean, rstd), or (rstd,) without ``center``; one element per row."""
    # The dimension is kept until the end: for a float32 tensor without dimensions plus a Python
    # number, PyTorch's forward-mode derivative is float64.
    h = s.to(accumulate_dtype(s))
    if not center:
        return (torch.rsqrt(h.square().mean(-1, keepdim=True) + eps).squeeze(-1),)
    mean = h.mean(-1, keepdim=True)
    # The rounding error of the mean is corrected, which matters where the mean is large.
    mean = mean + (h - mean).mean(-1, keepdim=True)
    variance = (h - mean).square().mean(-1, keepdim=True)
    return mean.squeeze(-1), torch.rsqrt(variance + eps).squeeze(-1)


def _normalized(s: Tensor, stats: tuple[Tensor, ...]) -> Tensor:
    *mean, rstd = stats
    h = s.to(accumulate_dtype(s))
    if mean:
        h = h - mean[0].unsqueeze(-1)
    return h * rstd.unsqueeze(-1)


def _scale_of(weight: Tensor, dtype: torch.dtype, zero_centered: bool) -> Tensor:
    return weight.to(dtype) + 1 if zero_centered else weight.to(dtype)


def affine(
    s: Tensor,
    stats: tuple[Tensor, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    zero_centered: bool,
) -> Tensor:
    y = _normalized(s, stats)
    if weight is not None:
        y = y * _scale_of(weight, y.dtype, zero_centered)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.to(s.dtype).contiguous()


def _sum_of_rows(terms: Tensor, dtype: torch.dtype) -> Tensor:
    leading = list(range(terms.dim() - 1))
    return (terms.sum(leading) if leading else terms).to(dtype)


def backward(
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    stats: tuple[Tensor, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    zero_centered: bool,
    need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    xhat = _normalized(x, stats)
    g = dy.to(xhat.dtype)
    dweight = dbias = dy.new_empty(0)
    if need_dweight and weight is not None:
        dweight = _sum_of_rows(g * xhat, weight.dtype)
    if need_dbias and bias is not None:
        dbias = _sum_of_rows(g, bias.dtype)
    if weight is not None:
        g = g * _scale_of(weight, g.dtype, zero_centered)
    dx = g - xhat * (g * xhat).mean(-1, keepdim=True)
    if len(stats) == 2:
        dx = dx - g.mean(-1, keepdim=True)
    dx = dx * stats[-1].unsqueeze(-1)
    if dsum is not None:
        dx = dx + dsum.to(dx.dtype)
    return dx.to(x.dtype).contiguous(), dweight, dbias
