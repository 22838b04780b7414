# SPDX-License-Identifier: MIT
"""Models on the paged cache: one whose every number is known, and a small transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.decode import Batch, PagedCache

VOCABULARY = 97


def following(tokens: Sequence[int]) -> int:
    """The token that :class:`Sums` continues with: it depends on every token and on their order."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % VOCABULARY


def continued(prompt: Sequence[int], count: int) -> list[int]:
    """The next ``count`` tokens."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


class Sums:
    """A model that keeps each token and its position as its key and its value, and reads them back
    from the pages. What it finds there decides its tokens."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []  # of each sequence, in each step

    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        self.rows.append(batch.counts)
        for layer in range(cache.num_layers):
            k = (batch.tokens + layer).to(cache.keys.dtype).expand(1, 1, -1).permute(2, 0, 1)
            v = (batch.positions + 1).to(cache.values.dtype).expand(1, 1, -1).permute(2, 0, 1)
            cache.append(layer, k, v, batch.slots)
        size, last = cache.page_size, cache.num_layers - 1
        places = torch.arange(batch.block_tables.shape[1] * size)
        pages = batch.block_tables.long()[:, places // size]
        k = cache.keys[last].flatten()[pages * size + places % size] - last
        v = cache.values[last].flatten()[pages * size + places % size]
        owners = torch.arange(len(batch.counts)).repeat_interleave(torch.tensor(batch.counts))
        owners, ends = owners[batch.outputs], batch.positions[batch.outputs]
        seen = places <= ends[:, None]
        sums = torch.where(seen, k[owners] * v[owners], 0).sum(1)
        assert sums.isfinite().all()
        return torch.nn.functional.one_hot(sums.long() % VOCABULARY, VOCABULARY).float()


def sums_cache(num_pages: int, **options: Any) -> PagedCache:
    """A cache for :class:`Sums`, full of NaN."""
    cache = PagedCache(2, num_pages, 1, 1, dtype=torch.float64, **options)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    return cache


class Transformer:
    """Two layers of attention in float64, each row computed by itself: a row's result does not
    depend on the others."""

    LAYERS, HEADS, DIM = 2, 2, 8

    def __init__(self) -> None:
        width = self.HEADS * self.DIM
        self.embedding = torch.randn(VOCABULARY, width).double()
        self.places = torch.randn(512, width).double()
        self.weights = torch.randn(self.LAYERS, 4, width, width).double() / width**0.5

    def cache(self, num_pages: int, **options: Any) -> PagedCache:
        cache = PagedCache(
            self.LAYERS, num_pages, self.HEADS, self.DIM, dtype=torch.float64, **options
        )
        cache.keys.fill_(float("nan"))
        cache.values.fill_(float("nan"))
        return cache

    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        out = [
            self._row(token, place, slot, batch.block_tables[owner], cache)
            for token, place, slot, owner in zip(
                batch.tokens.tolist(),
                batch.positions.tolist(),
                batch.slots.tolist(),
                (i for i, count in enumerate(batch.counts) for _ in range(count)),
                strict=True,
            )
        ]
        return torch.stack(out)[batch.outputs] @ self.embedding.T

    def _row(self, token: int, place: int, slot: int, table: Tensor, cache: PagedCache) -> Tensor:
        x = self.embedding[token] + self.places[place]
        pages = table[: cache.pages_of(place + 1)].long()
        for layer, (wq, wk, wv, wo) in enumerate(self.weights):
            q, k, v = ((w @ x).view(1, self.HEADS, self.DIM) for w in (wq, wk, wv))
            cache.append(layer, k, v, torch.tensor([slot]))
            keys, values = (
                (x[layer].transpose(1, 2) if cache.heads_major else x[layer])[pages]
                .flatten(0, 1)[: place + 1]
                for x in (cache.keys, cache.values)
            )  # fmt: skip
            scores = torch.einsum("hd,thd->ht", q[0], keys) / self.DIM**0.5
            mixed = torch.einsum("ht,thd->hd", scores.softmax(-1), values)
            x = x + (wo @ mixed.flatten()).tanh()
        return x

    def dense(self, tokens: Sequence[int]) -> Tensor:
        """The logits (T, V) of a whole sequence, by attention under a mask."""
        x = self.embedding[list(tokens)] + self.places[: len(tokens)]
        for wq, wk, wv, wo in self.weights:
            q, k, v = ((x @ w.T).view(len(x), self.HEADS, self.DIM) for w in (wq, wk, wv))
            scores = torch.einsum("qhd,thd->hqt", q, k) / self.DIM**0.5
            hidden = torch.ones(len(x), len(x)).triu(1).bool()
            shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            mixed = torch.einsum("hqt,thd->qhd", shares, v).flatten(1)
            x = x + (mixed @ wo.T).tanh()
        return x @ self.embedding.T
