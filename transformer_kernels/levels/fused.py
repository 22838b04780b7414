# SPDX-License-Identifier: MIT
"""The block in fused ops, which levels 4 and 5 run on different kernels.

Savings compared with level 1:
- attention reads and writes (B, T, H, D), the layout of the projections around it, so that its
  gradient is not copied;
- the projection's bias, the residual and the next norm are one pass over memory;
- the bias of the MLP's first projection is added where GELU reads it, and its gradient is summed
  where GELU's gradient is written, without a pass over the block's widest tensor;
- so is the bias of the second projection, with the residual.
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
    """Runs the block of ``native.block``, (B, T, C) -> (B, T, C)."""
    norm_1, norm_2 = w.norm_1, w.norm_2
    y = layer_norm(x, x.shape[-1:], norm_1.weight, norm_1.bias, eps, backend=backend)
    qkv = _torch.linear(y, w.qkv.weight, w.qkv.bias).unflatten(-1, (3, num_heads, -1))
    seen = attention(*qkv.unbind(2), causal=causal, backend=backend).flatten(2)
    # Under autocast, projections are narrower than the residual.
    out = _torch.linear(seen, w.out.weight).to(x.dtype)
    y, h = bias_dropout_add_layer_norm(
        out, w.out.bias, x, norm_2.weight, norm_2.bias, p=0.0, eps=eps, backend=backend
    )
    inner = gelu(_torch.linear(y, w.up.weight), bias=w.up.bias, backend=backend)
    down = _torch.linear(inner, w.down.weight).to(x.dtype)
    return bias_dropout_add(down, w.down.bias, h, p=0.0, backend=backend)
