# SPDX-License-Identifier: MIT
"""The ops of a mixture of experts in PyTorch operations, differentiable any number of times."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._torch import log_softmax
from .._dtype import accumulate_dtype
from .._philox import words_of

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = range(3)
EPSILON = 1e-20  # of a sum that divides
_NORMAL_COUNTERS = -(1 << 63)  # the highest bit
_HALF_RANGE = 1 << 31


# ---- the router ---------------------------------------------------------------------------------


def _random_words(x: Tensor, seed: Tensor, first: int) -> Tensor:
    """A word of 32 random bits for each element of x (T, E), as an int64."""
    blocks = -(-x.shape[1] // 4)
    counters = torch.arange(x.shape[0] * blocks, device=x.device) + first
    drawn = torch.stack(words_of(counters, seed), -1)
    return drawn.reshape(x.shape[0], 4 * blocks)


def _uniform(x: Tensor, seed: Tensor) -> Tensor:
    drawn = _random_words(x, seed, 0)[:, : x.shape[1]]
    signed = torch.where(drawn < _HALF_RANGE, drawn, drawn - 2 * _HALF_RANGE)
    return signed.to(x.dtype) / _HALF_RANGE


def _normal(x: Tensor, seed: Tensor) -> Tensor:
    fractions = (_random_words(x, seed, _NORMAL_COUNTERS).to(x.dtype) + 0.5) / (2 * _HALF_RANGE)
    of_pair = fractions.unflatten(1, (-1, 2))
    radius = (-2 * of_pair[..., 0].log()).sqrt()
    angle = 2 * math.pi * of_pair[..., 1]
    normals = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    return normals.flatten(1)[:, : x.shape[1]]


def noisy_logits(x: Tensor, seed: Tensor | None, jitter: float, noise: float) -> Tensor:
    z = x.to(accumulate_dtype(x))
    if seed is not None and jitter > 0:
        z = z * (1 + jitter * _uniform(z.detach(), seed))
    if seed is not None and noise > 0:
        z = z + noise * _normal(z.detach(), seed)
    return z


def scores_of(z: Tensor, score: int) -> Tensor:
    if score == SOFTMAX:
        return log_softmax(z, -1).exp()
    if score == SIGMOID:
        return torch.sigmoid(z)
    soft = torch.logaddexp(z, torch.zeros_like(z))
    is_zero = soft == 0  # where the root has no slope
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, soft).sqrt())


def _first_largest(c: Tensor, count: int) -> Tensor:
    """The indices of the largest numbers; of equal ones the first. NaN is larger than all."""
    return torch.sort(c, dim=-1, descending=True, stable=True).indices[..., :count]


def _chosen(c: Tensor, top_k: int, groups: int, top_groups: int) -> Tensor:
    if groups == 1:
        return _first_largest(c, top_k)
    of_group = c.unflatten(-1, (groups, -1))
    best = of_group.gather(-1, _first_largest(of_group, 2)).sum(-1)
    open_groups = _first_largest(best, top_groups).sort(-1).values
    size = of_group.shape[-1]
    experts = open_groups.unsqueeze(-1) * size + torch.arange(size, device=c.device)
    experts = experts.flatten(-2)
    return experts.gather(-1, _first_largest(c.gather(-1, experts), top_k))


def moe_router(
    x: Tensor, expert_bias: Tensor | None, seed: Tensor | None, top_k: int, groups: int,
    top_groups: int, sequences: int, score: int, renormalize: bool, scale: float, jitter: float,
    noise: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    z = noisy_logits(x, seed, jitter, noise)
    choice = z.detach()
    if expert_bias is not None or groups > 1:
        choice = scores_of(choice, score)
        choice = choice if expert_bias is None else choice + expert_bias.detach().to(z.dtype)
    indices = _chosen(choice, top_k, groups, top_groups)
    importance, lse = z.new_empty(0, z.shape[1]), z.new_empty(0)
    if score == SOFTMAX and renormalize:
        weights = torch.softmax(z.gather(-1, indices), -1)
    else:
        weights = scores_of(z, score).gather(-1, indices)
        if renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + EPSILON)
    if sequences > 0:
        s = scores_of(z, score)
        share = s if score == SOFTMAX else s / (s.sum(-1, keepdim=True) + EPSILON)
        importance = share.reshape(sequences, -1, z.shape[1]).sum(1)
        lse = torch.logsumexp(z, -1)
    return weights * scale, indices.to(torch.int32), importance, lse
