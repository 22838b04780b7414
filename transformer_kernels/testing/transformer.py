# SPDX-License-Identifier: MIT
"""A small transformer of plain PyTorch modules, written as model authors write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class EagerRMSNorm(nn.Module):
    """RMSNorm in PyTorch's own operations; with ``offset`` it scales by ``offset + weight``."""

    def __init__(self, features: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features) - offset)
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = self.weight + self.offset if self.offset else self.weight
        return x * scale * weight


class EagerGELU(nn.Module):
    """The tanh form of GELU in PyTorch's own operations."""

    def forward(self, x: Tensor) -> Tensor:
        inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates heads (B, H, T, D) by tables (B, T, D) whose halves are equal."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turned(q), turned(k)


class SelfAttention(nn.Module):
    """Causal attention with separate projections and rotary positions."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(features, features)
        self.k_proj = nn.Linear(features, features)
        self.v_proj = nn.Linear(features, features)
        self.o_proj = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in projected)
        turns = torch.arange(x.shape[1], device=x.device)[:, None] * torch.logspace(
            0, -2, q.shape[-1] // 2, device=x.device
        )
        angles = torch.cat((turns, turns), -1)[None].to(x.dtype)
        q, k = apply_rotary(q, k, angles.cos(), angles.sin())
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, features: int, p: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(features, 2 * features)
        self.act = EagerGELU()
        self.down = nn.Linear(2 * features, features)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class GatedMLP(nn.Module):
    """With ``packed``, gate and up are one linear layer."""

    def __init__(self, features: int, packed: bool = False) -> None:
        super().__init__()
        self.packed = packed
        self.gate = nn.Linear(features, (4 if packed else 2) * features, bias=False)
        self.up = None if packed else nn.Linear(features, 2 * features, bias=False)
        self.down = nn.Linear(2 * features, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.up is None:
            gate, up = self.gate(x).chunk(2, -1)
        else:
            gate, up = self.gate(x), self.up(x)
        y: Tensor = self.down(F.silu(gate) * up)
        return y


class Block(nn.Module):
    """A pre-norm block: attention, then an MLP or a gated one."""

    def __init__(self, features: int, heads: int, gated: bool, p: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = EagerRMSNorm(features), nn.LayerNorm(features)
        self.attention = SelfAttention(features, heads)
        self.mlp = GatedMLP(features) if gated else MLP(features, p)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Transformer(nn.Module):
    """Blocks, one with an MLP and one with a gated one, and a norm: (B, T, C) to (B, T, C)."""

    def __init__(self, features: int = 32, heads: int = 4, p: float = 0.0) -> None:
        super().__init__()
        self.drop = nn.Dropout(p)
        self.blocks = nn.ModuleList(Block(features, heads, gated, p) for gated in (False, True))
        self.norm = nn.LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.norm(x)
        return y
