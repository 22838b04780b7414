# SPDX-License-Identifier: MIT
"""Declares attention over a cache, which has no backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._declare_arguments import Given
from .._declare_raw import declare_raw
from .._heads import empty_heads
from .._work import sizes_of
from . import _decode_formula
from ._ops import ATTENTION


def _fake(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any  # noqa: ARG001
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, queries, heads, _dim = q.shape
    out = empty_heads(q, batch, queries, heads, v_cache.shape[-1])
    return out, q.new_empty((batch, heads, queries), dtype=torch.float32)


def _moved(pass_: str, given: Given) -> int:  # noqa: ARG001
    """Counts the caches as if they were full: the lengths are the device's."""
    return sizes_of(given, ("q", "out", "k_cache", "v_cache", "k", "v", "k_scale", "v_scale"))


ATTENTION_WITH_KV_CACHE = declare_raw(
    "attention_with_kv_cache(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k,"
    " Tensor? v, Tensor? lengths, Tensor? page_table, Tensor? cos, Tensor? sin,"
    " Tensor(c!)? k_scale, Tensor(d!)? v_scale, Tensor? alibi_slopes, Tensor? sinks,"
    " bool interleaved, float scale, int window_left, int window_right, float softcap)"
    " -> (Tensor out, Tensor lse)",
    of=ATTENTION,
    moved=_moved,
    reference=_decode_formula.attention_with_kv_cache,
    fake=_fake,
)
