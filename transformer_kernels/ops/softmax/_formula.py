# SPDX-License-Identifier: MIT
"""softmax and log_softmax in PyTorch operations, differentiable any number of times."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._torch import log_softmax, softmax
from .._dtype import accumulate_dtype


def _masked_scores(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    z = x.to(accumulate_dtype(x)) * scale
    if mask is not None and mask.dtype is torch.bool:
        z = z.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        z = z + mask.to(z.dtype)
    if causal:
        queries, keys = x.shape[-2], x.shape[-1]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=x.device).tril(keys - queries)
        z = z.masked_fill(~seen, -torch.inf)
    return z


def forward(x: Tensor, mask: Tensor | None, scale: float, causal: bool, log: bool) -> Tensor:
    """Computes softmax or log_softmax in PyTorch operations, differentiable any number of times."""
    z = _masked_scores(x, mask, scale, causal)
    normalize = log_softmax if log else softmax
    if mask is None and not causal:
        return normalize(z, -1).to(x.dtype).contiguous()
    # Masked elements leave the graph, so that no NaN of theirs reaches a gradient.
    gone = z == -torch.inf
    dead_row = gone.all(-1, keepdim=True)
    y = normalize(z.masked_fill(gone, -torch.inf).masked_fill(dead_row, 0.0), -1)
    y = y.masked_fill(dead_row, -torch.inf if log else 0.0)
    return y.to(x.dtype).contiguous()


def backward(dy: Tensor, y: Tensor, scale: float, masked: bool, log: bool) -> Tensor:
    """The gradient of ``x``, as a formula in ``dy`` and ``y`` that can be differentiated again."""
    dtype = accumulate_dtype(y)
    g, p = dy.to(dtype), y.to(dtype)
    if log:
        ds = g - p.exp() * g.sum(-1, keepdim=True)
        if masked:
            ds = ds.masked_fill(p == -torch.inf, 0.0)
    else:
        ds = p * (g - (g * p).sum(-1, keepdim=True))
    return (ds * scale).to(y.dtype).contiguous()
