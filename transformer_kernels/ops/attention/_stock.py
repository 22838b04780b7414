# SPDX-License-Identifier: MIT
"""Attention in PyTorch's own calls: ``scaled_dot_product_attention``, or code that a user would
write for features that it lacks. Tensors are (B, T, H, D); the log-sum-exp is not returned."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ... import _torch


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None,
    alibi_slopes: Tensor | None, sinks: Tensor | None, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, seed: Tensor | None, scale: float,  # noqa: ARG001
    window_left: int, window_right: int, top_left: bool, softcap: float, dropout: float,
    deterministic: bool,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    window = (window_left, window_right)
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        options = {"alibi_slopes": alibi_slopes, "sinks": sinks, "scale": scale, "window": window,
                   "top_left": top_left, "softcap": softcap, "dropout": dropout}  # fmt: skip
        return _packed(q, k, v, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), options)
    if softcap or sinks is not None or alibi_slopes is not None:
        return written_out(
            q, k, v, bias=bias, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks, scale=scale,
            window=window, top_left=top_left, softcap=softcap, dropout=dropout,
        )[0]  # fmt: skip
    square = top_left or q.shape[1] == k.shape[1]
    causal = square and window == (-1, 0) and mask is None and bias is None
    if not causal and window != (-1, -1):
        hidden = _hidden(_distances(q, k, top_left), window)
        mask = ~hidden if mask is None else mask & ~hidden
    return in_torch(
        q, k, v, attn_mask=_as_one(q, mask, bias), dropout_p=dropout, is_causal=causal, scale=scale
    )


def in_torch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Transposes to PyTorch's order, in which heads precede time, and back."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    shared = q.shape[2] != k.shape[2]
    return _torch.scaled_dot_product_attention(
        query, key, value, enable_gqa=shared, **options
    ).transpose(1, 2)


def _as_one(q: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """One tensor of mask and bias, because PyTorch takes either."""
    if bias is None:
        return mask
    bias = bias.to(q.dtype)
    return bias if mask is None else bias.masked_fill(~mask, -torch.inf)


def _distances(q: Tensor, k: Tensor, top_left: bool) -> Tensor:
    """Distances (Tq, Tk) of keys from the diagonal; positive in the future."""
    queries, keys = q.shape[1], k.shape[1]
    diagonal = torch.arange(queries, device=q.device).unsqueeze(-1)
    diagonal = diagonal + (0 if top_left else keys - queries)
    return torch.arange(keys, device=q.device) - diagonal


def _hidden(distance: Tensor, window: tuple[int, int]) -> Tensor:
    left, right = window
    return ((distance < -left) & (left >= 0)) | ((distance > right) & (right >= 0))


def written_out(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, scale: float | None = None,
    window: tuple[int, int] = (-1, -1), top_left: bool = False, softcap: float = 0.0,
    dropout: float = 0.0, keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the output and the log-sum-exp, with all scores in memory; ``keep`` are dropout's
    factors."""
    distance, keys, group = _distances(q, k, top_left), k.shape[1], q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    z = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    if alibi_slopes is not None:
        z = z - alibi_slopes.to(z.dtype)[..., None, None] * distance.abs().to(z.dtype)
    if bias is not None:
        z = z + bias.to(z.dtype)
    hidden = _hidden(distance, window)
    if mask is not None:
        hidden = hidden | ~mask
    z = z.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        z = torch.cat([z, sinks.to(z.dtype).view(1, -1, 1, 1).expand(*z.shape[:-1], 1)], -1)
    empty = (z == -torch.inf).all(-1, keepdim=True)
    lse = z.masked_fill(empty, 0.0).logsumexp(-1, keepdim=True)
    p = _torch.softmax(z.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)[..., :keys]
    p = _torch.dropout(p, dropout) if dropout else p
    p = p if keep is None else p * keep.to(p.dtype)
    return (p @ v).transpose(1, 2), lse.masked_fill(empty, -torch.inf).squeeze(-1)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, of_q: list[int], of_k: list[int], options: dict[str, Any]
) -> Tensor:
    """Runs sequence by sequence; rows after the last one are 0."""
    cuts = zip(pairwise(of_q), pairwise(of_k), strict=True)
    outs = [
        written_out(q[None, a:b], k[None, c:d], v[None, c:d], **options)[0][0]
        for (a, b), (c, d) in cuts
    ]
    return torch.cat([*outs, q.new_zeros(len(q) - of_q[-1], q.shape[1], v.shape[2])])
