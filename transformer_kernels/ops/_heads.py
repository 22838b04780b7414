# SPDX-License-Identifier: MIT
"""Memory of tensors (batch, time, heads, dim): in the order that another has its heads and rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def empty_heads(like: Tensor, *sizes: Any) -> Tensor:
    """(B, T, H, D) or (T, H, D), heads before rows in memory where ``like`` has them so."""
    if len(sizes) != 4 or like.stride(2) <= like.stride(1):
        return like.new_empty(sizes)
    batch, time, heads, dim = sizes
    return like.new_empty((batch, heads, time, dim)).transpose(1, 2)


def in_the_order_of(x: Tensor, like: Tensor) -> Tensor:
    """(B, T, H, D), heads before rows in memory where ``like`` has them so."""
    if x.dim() != 4 or like.stride(2) <= like.stride(1):
        return x.contiguous()
    return x.transpose(1, 2).contiguous().transpose(1, 2)
