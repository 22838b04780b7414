# SPDX-License-Identifier: MIT
"""Attention over a cache in PyTorch operations, without a step on the host: it gathers the whole
cache, and attends to what lies before each sequence's length."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from .._dtype import accumulate_dtype
from .._heads import in_the_order_of
from ..rope import _formula as _rope
from . import _formula

_OP = "attention_with_kv_cache"


class _Places(NamedTuple):
    """Rows of a cache. Those that do not exist are others', and marked so."""

    page: Tensor
    row: Tensor
    exists: Tensor


class _Pages(NamedTuple):
    """The pages of each sequence, (B, columns); without a table each sequence is one."""

    table: Tensor
    in_cache: int
    size: int

    @property
    def capacity(self) -> int:
        return self.table.shape[1] * self.size

    def places(self, tokens: Tensor) -> _Places:
        """The places of tokens (B, T)."""
        inside = (tokens >= 0) & (tokens < self.capacity)
        tokens = torch.where(inside, tokens, 0)
        page = self.table.gather(1, tokens // self.size)
        exists = inside & (page >= 0) & (page < self.in_cache)
        return _Places(torch.where(exists, page, 0), tokens % self.size, exists)


def _pages(q: Tensor, cache: Tensor, table: Tensor | None) -> _Pages:
    if table is None:
        table = torch.arange(q.shape[0], device=q.device).unsqueeze(1)
    return _Pages(table.long(), cache.shape[0], cache.shape[1])


def _rotated(
    x: Tensor, at: Tensor, cos: Tensor | None, sin: Tensor | None, interleaved: bool
) -> Tensor:
    """x in the arithmetic's dtype, rotated to positions (B, T)."""
    x = x.to(accumulate_dtype(x))
    if cos is None or sin is None:
        return x
    return _rope.forward(x, None, cos, sin, at, None, None, 0, 0, 0, interleaved)[0]


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of int8 and the scale of each row, which is not finite where a number is not."""
    most = x.abs().amax(-1, keepdim=True)
    largest = most.new_full((), 127.0)  # PyTorch divides numbers of Python by their reciprocals
    steps = torch.where((most > 0) & most.isfinite(), largest / most, 0.0)
    return (x * steps).nan_to_num(0, 0, 0).round().to(torch.int8), (most / largest).squeeze(-1)


def _put(cache: Tensor, at: _Places, rows: Tensor) -> None:
    """Writes rows to their places, where there are such. The others write what the first row with a
    place writes, to the same place: they may not undo what a row writes there."""
    page, row, exists = (x.flatten() for x in at)
    if not len(page):
        return
    every = torch.arange(len(page), device=page.device)
    source = torch.where(exists, every, exists.int().argmax())
    page, row, new = page[source], row[source], rows.to(cache.dtype).flatten(0, 1)[source]
    cache[page, row] = torch.where(exists.any(), new, cache[page, row])


def _append(cache: Tensor, scale: Tensor | None, at: _Places, x: Tensor) -> None:
    if scale is not None:
        x, own = _quantized(x)
        _put(scale, at, own)
    _put(cache, at, x)


def _gathered(cache: Tensor, scale: Tensor | None, at: _Places, seen: Tensor, q: Tensor) -> Tensor:
    """The tokens of each sequence, (B, capacity, Hk, D): 0 behind its length."""
    rows = cache[at.page, at.row].to(accumulate_dtype(q))
    if scale is not None:
        rows = rows * scale[at.page, at.row].unsqueeze(-1)
    return torch.where(seen[:, :, None, None], rows, 0)


def _check_numbers(scale: float, softcap: float) -> None:
    """The checks that C++ makes of what would make all scores NaN."""
    if not math.isfinite(scale):
        raise ArgumentValueError(f"{_OP}: scale is {scale:g}, expected a finite number")
    if not 0 <= softcap <= torch.finfo(torch.float32).max:
        raise ArgumentValueError(
            f"{_OP}: softcap is {softcap:g}, expected a finite number, 0 or above"
        )


def attention_with_kv_cache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
    lengths: Tensor | None, page_table: Tensor | None, cos: Tensor | None, sin: Tensor | None,
    k_scale: Tensor | None, v_scale: Tensor | None, alibi_slopes: Tensor | None,
    sinks: Tensor | None, interleaved: bool, scale: float, window_left: int, window_right: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Has the signature of the raw op. A token without a place is not written, and a key without
    one is not seen: the CPU's kernels refuse both."""
    _check_numbers(scale=scale, softcap=softcap)
    batch, queries = q.shape[:2]
    pages = _pages(q, k_cache, page_table)
    added = 0 if k is None else k.shape[1]
    if lengths is None:
        lengths = torch.full((batch,), pages.capacity - added, device=q.device)
    before = lengths.long().unsqueeze(1)
    if k is not None and v is not None:
        tokens = before + torch.arange(added, device=q.device)
        at = pages.places(tokens)
        _append(k_cache, k_scale, at, _rotated(k, tokens, cos, sin, interleaved))
        _append(v_cache, v_scale, at, v.to(accumulate_dtype(v)))
    total = before + added
    keys = torch.arange(pages.capacity, device=q.device).expand(batch, -1)
    at = pages.places(keys)
    seen = at.exists & (keys < total)
    tokens = total - queries + torch.arange(queries, device=q.device)
    distance = keys.unsqueeze(1) - tokens.unsqueeze(2)  # (B, Tq, capacity)
    mask = seen.unsqueeze(1).expand_as(distance)
    if window_left >= 0:
        mask = mask & (distance >= -window_left)
    if window_right >= 0:
        mask = mask & (distance <= window_right)
    bias = None
    if alibi_slopes is not None:
        slopes = alibi_slopes.expand(batch, -1)[..., None, None]
        bias = -slopes * distance.abs().unsqueeze(1)
    out, lse = _formula.forward(
        _rotated(q, tokens, cos, sin, interleaved),
        _gathered(k_cache, k_scale, at, seen, q), _gathered(v_cache, v_scale, at, seen, q),
        bias, mask.unsqueeze(1), None, sinks, None, None, None,
        scale, -1, -1, False, softcap, 0.0, False,
    )  # fmt: skip
    return in_the_order_of(out.to(q.dtype), q), lse.float()
