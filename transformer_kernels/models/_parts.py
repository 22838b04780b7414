# SPDX-License-Identifier: MIT
"""The parts between the projections of a layer, which have no parameters.

They are written in PyTorch. Where :func:`transformer_kernels.fuse` has no pattern for them,
``ours`` chooses the op of this package instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import attention, bias_dropout_add
from ..ops.pointwise._ops import GATED as GATED_OPS
from ._cache import KeyValueCache
from ._config import GATED, PLAIN, TransformerConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # a layer's q, k, v of packed rows
Tables = tuple[Tensor, Tensor]  # cosines and sines, (1, T, D): each frequency stands twice


class Switched(nn.Module):
    """The base of modules that call ops of this package where ``ours`` is set."""

    ours = False


class Activation(Switched):
    """The activation of this name; a gated one takes the packed pair [gate | up], (..., 2I), and
    gives ``act(gate) * up``, (..., I)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        if self.name in PLAIN:
            return PLAIN[self.name](x)
        if self.ours:
            return GATED_OPS[self.name].call(x, None, None, None, "auto")
        gate, up = x.chunk(2, -1)
        return GATED[self.name](gate) * up

    def extra_repr(self) -> str:
        return self.name


def add(residual: Tensor, branch: Tensor, p: float, ours: bool) -> Tensor:
    """``residual + dropout(branch)``."""
    if not p:
        return residual + branch
    if ours and branch.dtype is residual.dtype:
        return bias_dropout_add(branch, None, residual, p)
    return residual + F.dropout(branch, p)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates heads (B, H, T, D) by the angles of their positions."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Heads(Switched):
    """The base of modules that read queries, keys and values from their packed projection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.parts = (config.num_heads, config.kv_heads, config.kv_heads)
        self.head_dim = config.head_dim

    def heads(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Views of the projection: queries (..., H, D), keys and values (..., Hk, D)."""
        return qkv.unflatten(-1, (-1, self.head_dim)).split(self.parts, -2)


def _mask(queries: int, keys: int, device: torch.device) -> Tensor | None:
    """The causal mask of queries that follow other tokens; PyTorch's own begins at the first
    key."""
    if not 1 < queries < keys:
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class SelfAttention(Heads):
    """Attention of the tokens of a sequence to each other, from their packed projection
    (B, T, (H + 2 Hk) D) to (B, T, C).

    Args:
        config: the configuration of the layers.
        index: the layer's number, by which it finds its keys in the cache.
        causal: whether a token sees those before it and itself alone.
    """

    def __init__(self, config: TransformerConfig, index: int, causal: bool) -> None:
        super().__init__(config)
        self.index = index
        self.causal = causal

    def forward(
        self, qkv: Tensor, p: float, tables: Tables | None = None,
        cache: KeyValueCache | Attend | None = None,
    ) -> Tensor:  # fmt: skip
        q, k, v = (x.transpose(1, 2) for x in self.heads(qkv))
        if tables is not None:
            q, k = apply_rotary_pos_emb(q, k, *tables)
            q, k = q.to(v.dtype), k.to(v.dtype)  # the tables are wider than 16 bits
        if callable(cache):
            own = cache(self.index, *(x[0].transpose(0, 1) for x in (q, k, v)))
            return own.flatten(1)[None]
        if cache is not None:
            kept = cache.append(self.index, k.transpose(1, 2), v.transpose(1, 2))
            if self.ours:  # PyTorch's would wait for all threads at each token
                seen: Tensor = attention(q.transpose(1, 2), *kept, causal=self.causal, dropout=p)
                return seen.flatten(2)
            k, v = (x.transpose(1, 2) for x in kept)
        queries, keys = q.shape[2], k.shape[2]
        out = F.scaled_dot_product_attention(
            q, k, v, _mask(queries, keys, q.device) if self.causal else None, p,
            self.causal and queries == keys, enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return out.transpose(1, 2).flatten(2)
