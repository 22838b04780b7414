# SPDX-License-Identifier: MIT
"""Functions that rewritten graphs call: this package's, with the operands as a graph has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import functional
from ..derive import rebind

# PyTorch's own code around another attention.
multi_head_attention: Any = rebind(
    F.multi_head_attention_forward,
    {"scaled_dot_product_attention": functional.scaled_dot_product_attention},
)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: tuple[Tensor, ...] = (),
    mask: Tensor | None = None,
    *,
    scale: float | None,
    softcap: float = 0.0,
    causal: bool = False,
    window: int = -1,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of heads (..., H, T, D), or (..., T, D) without heads; ``window`` is the number of
    keys before its own that a query sees."""
    alone = q.dim() == 3
    if alone:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        biases = tuple(x.unsqueeze(1) if x.dim() == 3 else x for x in biases)
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
    bias = None
    for one in biases:
        bias = one if bias is None else bias + one
    y: Tensor = functional.attention(
        q, k, v, causal=causal, window=(window, -1), scale=scale, softcap=softcap, bias=bias,
        mask=mask, dropout=dropout, heads_first=True,
    )  # fmt: skip
    return y.squeeze(1) if alone else y


def hiding(mask: Tensor, value: float, is_seen: bool, like: Tensor) -> Tensor:
    """Scores to add where the graph sets them to ``value`` by a boolean mask."""
    zero = like.new_zeros(())
    return torch.where(mask, zero, value) if is_seen else torch.where(mask, value, zero)


def windowed(bias: Tensor, q: Tensor) -> Tensor:
    """Scores to add (..., W, H, T, T) for heads (B * W, H, T, D), which repeat the W windows."""
    whole = bias.unsqueeze(0) if bias.dim() == 4 else bias
    return whole.expand(q.shape[0] // whole.shape[1], *whole.shape[1:]).flatten(0, 1)


def attend_transposed(q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Tensor:
    """:func:`attend` with keys as the product takes them, (..., D, T)."""
    return attend(q, k.transpose(-2, -1), v, *others, **options)


def loss_in_float32(*arguments: Any, **options: Any) -> Tensor:
    """The loss of logits that the graph casts to float32 first."""
    loss: Tensor = functional.cross_entropy(*arguments, **options)
    return loss.to(torch.float32)
