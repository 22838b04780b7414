# SPDX-License-Identifier: MIT
"""Level 1: the block in plain PyTorch. Levels 2 and 3 compile this function.

Attention is one operator, as in today's models: its scores are never in memory. Every other line is
one kernel or more, which reads all of its input from memory and writes all of its output back for
the next line to read.
"""

# Annotations are not postponed, because TorchScript reads them as they stand.
from torch import Tensor
from torch.nn import functional as F

from ._level import Level, Weights


def block(x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
    """Computes x + attention(norm(x)), then h + mlp(norm(h)); (B, T, C) -> (B, T, C)."""
    y = F.layer_norm(x, x.shape[-1:], w.norm_1.weight, w.norm_1.bias, eps)
    qkv = F.linear(y, w.qkv.weight, w.qkv.bias).unflatten(-1, (3, num_heads, -1))
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
    h = x + F.linear(seen, w.out.weight, w.out.bias)

    y = F.layer_norm(h, h.shape[-1:], w.norm_2.weight, w.norm_2.bias, eps)
    inner = F.gelu(F.linear(y, w.up.weight, w.up.bias))
    return h + F.linear(inner, w.down.weight, w.down.bias)


class Native(Level):
    name = "torch"
    title = "native PyTorch"

    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        return block(x, w, num_heads, causal, eps)
