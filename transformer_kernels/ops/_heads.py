# SPDX-License-Identifier: MIT
"""Allocates tensors (batch, time, heads, dim) with heads and rows in the memory order of
another."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def empty_heads(like: Tensor, *sizes: Any) -> Tensor:
    """Allocates (B, T, H, D) or (T, H, D), with heads before rows in memory if ``like`` has them
    so."""
    if len(sizes) != 4 or like.stride(2) <= like.stride(1):
        return like.new_empty(sizes)
    batch, time, heads, dim = sizes
    return like.new_empty((batch, heads, time, dim)).transpose(1, 2)


def in_the_order_of(x: Tensor, like: Tensor) -> Tensor:
    """Copies x (B, T, H, D) if needed, so that heads precede rows in memory if they do in
    ``like``."""
    if x.dim() != 4 or like.stride(2) <= like.stride(1):
        return x.contiguous()
    return x.transpose(1, 2).contiguous().transpose(1, 2)
