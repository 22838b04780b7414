# SPDX-License-Identifier: MIT
"""Attention of a step's rows over the paged cache."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from .. import _library
from ..functional import attention_varlen, attention_with_kv_cache, rope
from ._batch import Batch
from ._paged_cache import PagedCache

_READ_IN_PAGES = (torch.float32, torch.float16, torch.bfloat16)
# On a GPU, the most rows of a sequence for which pages are read where they are. Above it, gathering
# the keys costs less than rows that each read them.
_FEW_ROWS = 16


class PagedAttention:
    """Stores the keys and values of a step's rows, layer after layer, and computes attention.

    Args:
        batch: the rows of a step.
        cache: the cache that they belong to.

    >>> def model(batch, cache):  # of one layer, whose tokens are their own queries and keys
    ...     x = torch.nn.functional.one_hot(batch.tokens, 8)[:, None].float()  # (N, 1, 8)
    ...     return tfk.decode.PagedAttention(batch, cache)(0, x, x, x)[batch.outputs, 0]
    >>> cache = tfk.decode.PagedCache(num_layers=1, num_pages=8, num_heads=1, head_dim=8)
    >>> tfk.decode.Engine(model, cache).generate([[5, 5, 3]])[0].tokens[:3]
    [5, 5, 5]
    """

    def __init__(self, batch: Batch, cache: PagedCache) -> None:
        self.batch = batch
        self.cache = cache
        self.layers: list[int] = []  # whose attention has run
        self._seen: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None,
        rotation: tuple[Tensor, Tensor] | None = None, **options: Any,
    ) -> Tensor:  # fmt: skip
        """Stores ``k`` and ``v``, and returns the attention (N, H, Dv) of each row to the tokens of
        its sequence up to itself.

        Args:
            layer: index of the layer.
            q, k, v: (N, H, D), (N, Hk, D) and (N, Hk, Dv).
            window: the most tokens that a row sees, itself included; by default all.
            rotation: cosines and sines (P, R / 2) of all positions, by which ``q`` and ``k`` are
                rotated first, as :func:`transformer_kernels.functional.rope` does.
            options: ``scale``, ``softcap`` and ``sinks`` of
                :func:`transformer_kernels.functional.attention`.
        """
        self.layers.append(layer)
        options |= {"causal": True, "window": (-1 if window is None else window - 1, 0)}
        cache = self.cache
        is_read_in_pages = q.dtype in _READ_IN_PAGES and q.dtype is cache.keys.dtype
        if is_read_in_pages and (q.is_cpu or self._has_few_rows_on_cuda(q)):
            if rotation is not None:
                options |= {"cos": rotation[0], "sin": rotation[1]}
            return self._in_pages(layer, q, k, v, **options)
        if rotation is not None:
            cos, sin = (table[self.batch.positions] for table in rotation)
            q, k = (x[0] for x in rope(q[None], k[None], cos, sin))
        cache.append(layer, k, v, self.batch.slots)
        return self._gathered(layer, q, **options)

    def _has_few_rows_on_cuda(self, q: Tensor) -> bool:
        has_kernels = q.is_cuda and _library.has_cuda_kernels
        return has_kernels and max(self.batch.counts, default=0) <= _FEW_ROWS

    def _in_pages(self, layer: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Reads pages where they are, for neighbours with as many rows together."""
        batch = self.batch
        keys, values = self._layer(layer)
        out, row, sequence = [], 0, 0
        for count, group in groupby(batch.counts):
            here = len(list(group))
            rows, of = slice(row, row + here * count), slice(sequence, sequence + here)
            q_, k_, v_ = (x[rows].unflatten(0, (here, count)) for x in (q, k, v))
            seen: Tensor = attention_with_kv_cache(
                q_, keys, values, k_, v_, lengths=batch.lengths[of],
                page_table=batch.block_tables[of], **options,
            )  # fmt: skip
            out.append(seen.flatten(0, 1))
            row, sequence = rows.stop, of.stop
        return out[0] if len(out) == 1 else torch.cat(out)

    def _layer(self, layer: int) -> list[Tensor]:
        """A layer's keys and values, (pages, page_size, Hk, D)."""
        stores = (self.cache.keys[layer], self.cache.values[layer])
        return [x.transpose(1, 2) if self.cache.heads_major else x for x in stores]

    def _gathered(self, layer: int, q: Tensor, **options: Any) -> Tensor:
        slots, cu_seqlens_k = self._slots_seen()
        k, v = (x.flatten(0, 1)[slots] for x in self._layer(layer))
        return attention_varlen(q, k, v, self.batch.cu_seqlens, cu_seqlens_k, **options)

    def _slots_seen(self) -> tuple[Tensor, Tensor]:
        """The slots of all tokens that rows see, and where each sequence's begin among them."""
        if self._seen is None:
            batch, size = self.batch, self.cache.page_size
            ends = batch.lengths + batch.cu_seqlens.diff()
            places = torch.arange(batch.block_tables.shape[1] * size, device=ends.device)
            slots = batch.block_tables.long()[:, places // size] * size + places % size
            starts = torch.nn.functional.pad(ends.cumsum(0, dtype=torch.int32), (1, 0))
            self._seen = slots[places < ends[:, None]], starts
        return self._seen
