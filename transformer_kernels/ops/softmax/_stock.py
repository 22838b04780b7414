# SPDX-License-Identifier: MIT
"""softmax in PyTorch's own calls, with our rule for rows in which every element is masked."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _torch


def softmax(x: Tensor, mask: Tensor | None, scale: float, causal: bool, log: bool) -> Tensor:
    run = _torch.log_softmax if log else _torch.softmax
    if mask is None and scale == 1.0 and not causal:
        return run(x, -1)
    z = x * scale
    if mask is not None:
        z = z.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else z + mask.to(z.dtype)
    if causal:
        future = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device)
        z = z.masked_fill(future.triu(1 + x.shape[-1] - x.shape[-2]), -torch.inf)
    empty = (z == -torch.inf).all(-1, keepdim=True)
    y = run(z.masked_fill(empty, 0.0), -1)
    return y.masked_fill(empty, -torch.inf if log else 0.0)
