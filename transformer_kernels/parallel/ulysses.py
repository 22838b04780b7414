# SPDX-License-Identifier: MIT
"""Attention over sequences that are split between ranks, of whole sequences and some of the heads
on each rank: two all-to-alls exchange time for heads and heads for time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    check_tensors,
    dtype_name,
)
from .._library import log_dispatch
from ..ops._dtype import under_autocast
from ..ops.attention.attention import attention, attention_varlen
from ._exchange import exchanged
from ._ranks import Group, Ranks, ranks_of
from .sequence import check_rows

_OP = "ulysses_attention"


def _to_heads(parts: list[Tensor], ranks: Ranks) -> list[Tensor]:
    """Tensors (..., T / N, H, D) as (..., T, H / N, D), in one message."""
    by_rank = [x.unflatten(-2, (ranks.size, -1)).movedim(-3, 0) for x in parts]
    sizes = [x[0].numel() for x in by_rank]
    arrived = exchanged(torch.cat([x.flatten(1) for x in by_rank], 1), ranks).split(sizes, 1)
    named = zip(arrived, by_rank, strict=True)
    return [y.reshape(x.shape).movedim(0, -4).flatten(-4, -3) for y, x in named]


def _to_time(x: Tensor, ranks: Ranks) -> Tensor:
    """(..., T, H / N, D) as (..., T / N, H, D)."""
    arrived = exchanged(x.unflatten(-3, (ranks.size, -1)).movedim(-4, 0), ranks)
    return arrived.movedim(0, -3).flatten(-3, -2)


def _check(q: Tensor, k: Tensor, v: Tensor, ranks: Ranks) -> None:
    """Refuses what cannot be exchanged."""
    for name, x in (("k", k), ("v", v)):
        if x.dtype is not q.dtype:
            raise ArgumentTypeError(
                f"{_OP}: {name} is {dtype_name(x.dtype)}, expected {dtype_name(q.dtype)} as q is"
            )
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if v.shape[-2] != kv_heads:
        raise ArgumentValueError(f"{_OP}: v has {v.shape[-2]} heads, expected {kv_heads} as k has")
    for number, of in ((ranks.size, "the ranks"), (max(kv_heads, 1), "the heads of k")):
        if heads % number:
            raise ArgumentValueError(
                f"{_OP}: q has {heads} heads, expected a multiple of {number} ({of})"
            )


def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group = None,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens: Tensor | None = None,
    heads_first: bool = False,
    return_lse: bool = False,
    deterministic: bool = True,
    backend: str = "auto",
) -> Any:
    """Computes :func:`transformer_kernels.functional.attention` over sequences that are split by
    time between the ranks of a group, each rank for its share of the heads: DeepSpeed-Ulysses
    (Jacobs et al. 2023, arXiv:2309.14509).

    One all-to-all turns parts of the time with all heads into the whole time with a part of the
    heads, another one turns the result back, and the backward pass does the same. A rank sends
    1 / N of what :func:`ring_attention` sends, but waits for it, and there are at most as many
    ranks as query heads. Where the key heads do not divide among the ranks, they are repeated.

    Args:
        q: (B, T / N, H, D), this rank's part of B sequences of T tokens, in the contiguous layout
            of :func:`shard_sequence`. With ``cu_seqlens`` (total / N, H, D), a part of all packed
            rows. All ranks pass one shape, and H is a multiple of N.
        k, v: the same rows of Hk heads; query head ``h`` reads head ``h // (H // Hk)``.
        group: a process group or a mesh of one dimension; by default all processes. Without
            :mod:`torch.distributed` there is one rank.
        causal, window, scale, softcap, heads_first, return_lse, backend: as of attention.
        cu_seqlens: int32 (sequences + 1), the offsets of packed sequences before they are split.
            Their rows are split as if they were one sequence.
        deterministic: as of attention; here it is the default.

    Returns:
        (B, T / N, H, Dv), or a pair of that and the log-sum-exp, (B, H, T / N).

    Raises:
        ArgumentValueError: the heads do not divide among the ranks, or attention refuses a shape.
        ArgumentTypeError: an argument is of another type or dtype.

    >>> q, k, v = torch.randn(3, 2, 16, 4, 32)  # without a process group there is one rank
    >>> tfk.parallel.ulysses_attention(q, k, v, causal=True).shape
    torch.Size([2, 16, 4, 32])
    """
    ranks = ranks_of(_OP, group)
    check_tensors(_OP, {"q": q, "k": k, "v": v})
    if as_flag(_OP, "heads_first", heads_first):
        q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    check_rows(_OP, q, k, v, cu_seqlens is not None)
    _check(q, k, v, ranks)
    q, k, v = under_autocast(q.device.type, q, k, v)
    repeats = ranks.size // math.gcd(ranks.size, k.shape[-2])
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, -2) for x in (k, v))
    log_dispatch(f"{_OP}: {ranks.size} ranks, {ranks.backend}, key heads {repeats}x, all-to-all")
    options: dict[str, Any] = {
        "causal": causal, "window": window, "scale": scale, "softcap": softcap,
        "deterministic": deterministic, "backend": backend, "return_lse": True,
    }  # fmt: skip
    q, k, v = _to_heads([q, k, v], ranks)
    if cu_seqlens is None:
        out, lse = attention(q, k, v, **options)
    else:
        out, lse = attention_varlen(q, k, v, cu_seqlens.to(q.device), **options)
    out = _to_time(out, ranks)
    out = out.transpose(-2, -3) if heads_first else out
    if not as_flag(_OP, "return_lse", return_lse):
        return out
    return out, _to_time(lse.mT.unsqueeze(-1), ranks).squeeze(-1).mT
