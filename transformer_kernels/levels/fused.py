# SPDX-License-Identifier: MIT
"""The block in fused ops, which levels 4 and 5 run by different kernels.

What it spares over level 1:
- attention takes and gives (B, T, H, D), the layout of the projections on either side: its gradient
  is not copied on the way back;
- the bias of the projection, the residual and the norm behind it are one pass over memory;
- the bias of the MLP's first projection is added where GELU reads it, and its gradient summed where
  GELU's gradient is written: no pass over the widest tensor of the block for a sum of rows;
- so is the second one's, with the residual.
"""

from __future__ import annotations

from torch import Tensor

from .. import _torch
from ..ops.attention.attention import attention
from ..ops.norm.dropout_norm import bias_dropout_add_layer_norm
from ..ops.norm.layer_norm import layer_norm
from ..ops.pointwise.dropout import bias_dropout_add
from ..ops.pointwise.pointwise import gelu
from ._level import Weights


def block(x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float, backend: str) -> Tensor:
    """(B, T, C) -> (B, T, C), as ``native.block``."""
    norm_1, norm_2 = w.norm_1, w.norm_2
    y = layer_norm(x, x.shape[-1:], norm_1.weight, norm_1.bias, eps, backend=backend)
    qkv = _torch.linear(y, w.qkv.weight, w.qkv.bias).unflatten(-1, (3, num_heads, -1))
    seen = attention(*qkv.unbind(2), causal=causal, backend=backend).flatten(2)
    # Autocast's projections are narrower than the residual.
    out = _torch.linear(seen, w.out.weight).to(x.dtype)
    y, h = bias_dropout_add_layer_norm(
        out, w.out.bias, x, norm_2.weight, norm_2.bias, p=0.0, eps=eps, backend=backend
    )
    inner = gelu(_torch.linear(y, w.up.weight), bias=w.up.bias, backend=backend)
    down = _torch.linear(inner, w.down.weight).to(x.dtype)
    return bias_dropout_add(down, w.down.bias, h, p=0.0, backend=backend)
