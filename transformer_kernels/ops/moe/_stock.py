# SPDX-License-Identifier: MIT
"""The ops as models write them, in PyTorch's own calls."""

# Functions have the signatures of the raw ops, even where they do not read every argument.
# ruff: noqa: ARG001

from __future__ import annotations

import torch
from torch import Tensor

from ._formula import SIGMOID, SOFTMAX


def moe_router(
    x: Tensor, expert_bias: Tensor | None, seed: Tensor | None, top_k: int, groups: int,
    top_groups: int, sequences: int, score: int, renormalize: bool, scale: float, jitter: float,
    noise: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As in Hugging Face's Mixtral and DeepSeek-V3, without statistics; random numbers are
    PyTorch's own."""
    z = x.float() if x.dtype is not torch.float64 else x
    if jitter > 0:
        z = z * torch.empty_like(z).uniform_(1 - jitter, 1 + jitter)
    if noise > 0:
        z = z + noise * torch.randn_like(z)
    scores = (
        torch.softmax(z, -1) if score == SOFTMAX
        else torch.sigmoid(z) if score == SIGMOID
        else torch.nn.functional.softplus(z).sqrt()
    )  # fmt: skip
    choice = scores if expert_bias is None else scores + expert_bias
    if groups > 1:
        best = choice.unflatten(-1, (groups, -1)).topk(2, -1).values.sum(-1)
        is_open = torch.zeros_like(best).scatter_(1, best.topk(top_groups, -1).indices, 1).bool()
        size = choice.shape[-1] // groups
        closed = ~is_open.repeat_interleave(size, -1)
        choice = choice.masked_fill(closed, -torch.inf)
    indices = choice.topk(top_k, -1).indices
    weights = scores.gather(-1, indices)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + (0 if score == SOFTMAX else 1e-20))
    importance, lse = z.new_empty(0, z.shape[1]), z.new_empty(0)
    if sequences:
        importance = (scores / scores.sum(-1, keepdim=True)).unflatten(0, (sequences, -1)).sum(1)
        lse = z.logsumexp(-1)
    return weights * scale, indices.to(torch.int32), importance, lse
