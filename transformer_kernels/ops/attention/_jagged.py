# SPDX-License-Identifier: MIT
"""Jagged nested tensors run as attention_varlen: they hold their sequences one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from ..._torch import jagged_like, ragged_dim
from .._kinds import jagged_values

_TIME = 1  # the dimension of (B, T, H, D)


def _rows(name: str, x: Tensor) -> Tensor:
    """The memory of a jagged tensor, (total T, H, D)."""
    if x.dim() != 4:
        raise ArgumentValueError(
            f"attention: {name} has {x.dim()} dimensions, expected 4 (batch, time, heads, dim)"
        )
    if ragged_dim(x) != _TIME:
        raise ArgumentValueError(
            f"attention: {name} is jagged in another dimension than time, expected (batch, time,"
            " heads, dim), or (batch, heads, time, dim) with heads_first=True"
        )
    return jagged_values("attention", name, x)


def offsets_of(x: Tensor) -> Tensor:
    """The beginning of each sequence and the end of the last, as attention_varlen takes them."""
    offsets: Tensor = x.offsets()  # type: ignore[attr-defined]
    return offsets.to(torch.int32)


def attention(
    varlen: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    heads_first: bool,
    return_lse: bool,
    bias: Tensor | None,
    mask: Tensor | None,
    **options: Any,
) -> Any:
    """Calls ``varlen``; its results become nested tensors with the offsets of ``q``."""
    for name, x in (("bias", bias), ("mask", mask)):
        if x is not None:
            raise ArgumentValueError(
                f"attention: {name} is given, expected none with jagged tensors (sequences share no"
                " scores)"
            )
    if heads_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    rows = [_rows(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    if k.shape[_TIME] != v.shape[_TIME]:
        raise ArgumentValueError(
            "attention: v has sequences of its own, expected those of k (the same offsets tensor)"
        )
    q_at = offsets_of(q)
    k_at = q_at if k.shape[_TIME] == q.shape[_TIME] else offsets_of(k)
    out, lse = varlen(*rows, q_at, k_at, return_lse=True, **options)
    out = jagged_like(q, out)
    out = out.transpose(1, 2) if heads_first else out
    return (out, jagged_like(q, lse.transpose(0, 1)).transpose(1, 2)) if return_lse else out
