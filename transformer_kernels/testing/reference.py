# SPDX-License-Identifier: MIT
"""The ops in float64, as their definitions read. Nothing here is shared with a backend.

Gradients come from autograd through these definitions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(
    x: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    log: bool = False,
) -> Tensor:
    z = x.double() * scale
    seen = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if mask is not None and mask.dtype is torch.bool:
        seen = seen & mask
    elif mask is not None:
        z = z + mask.double()
        seen = seen & (mask != -torch.inf)
    if causal:
        query = torch.arange(x.shape[-2], device=x.device).unsqueeze(-1)
        key = torch.arange(x.shape[-1], device=x.device)
        seen = seen & (key <= query + x.shape[-1] - x.shape[-2])
    if x.shape[-1] == 0:
        return z
    z = torch.where(seen, z, -torch.inf)
    empty = ~seen.any(-1, keepdim=True)
    z = torch.where(empty, 0.0, z)
    shifted = z - z.detach().amax(-1, keepdim=True)
    powers = shifted.exp()
    total = powers.sum(-1, keepdim=True)
    if log:
        return torch.where(empty, -torch.inf, shifted - total.log())
    return torch.where(empty, 0.0, powers / total)


def _affine(
    y: Tensor, weight: Tensor | None, bias: Tensor | None, zero_centered_weight: bool
) -> Tensor:
    if weight is not None:
        y = y * (weight.double() + (1.0 if zero_centered_weight else 0.0))
    return y if bias is None else y + bias.double()


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    zero_centered_weight: bool = False,
) -> Tensor:
    x = x.double()
    centered = x - x.mean(-1, keepdim=True)
    variance = (centered * centered).mean(-1, keepdim=True)
    return _affine(centered / (variance + eps).sqrt(), weight, bias, zero_centered_weight)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    zero_centered_weight: bool = False,
) -> Tensor:
    x = x.double()
    mean_square = (x * x).mean(-1, keepdim=True)
    return _affine(x / (mean_square + eps).sqrt(), weight, bias, zero_centered_weight)


def rounded_sum(x: Tensor, residual: Tensor, dtype: torch.dtype) -> Tensor:
    """x + residual as it is stored, with the gradient of the exact sum."""
    exact = x.double() + residual.double()
    return exact + (exact.to(dtype).double() - exact).detach()
