# SPDX-License-Identifier: MIT
"""A cache of Hugging Face's Transformers whose keys and values stand in pages.

>>> from transformer_kernels.integrations.cache import PagedTransformersCache
>>> cache = PagedTransformersCache(model.config)
>>> model.generate(tokens, past_key_values=cache)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, get_layer_types_and_kwargs

from .._errors import ArgumentValueError
from ..decode import CachedSequence, PageTable

_KINDS = ("full_attention", "sliding_attention")


class PagedTransformersCache(Cache):
    """Gives models the keys and values that a ``DynamicCache`` gives them, from pages.

    Beams that begin alike share pages: reordering them copies no keys, and a beam's last page is
    copied when it writes to it. Memory doubles when it is used up. All tokens are kept, also where
    all layers have a sliding window, so that the cache can be cropped at any time.

    Args:
        config: the model's configuration.
        page_size: 16, 64 or 256 tokens of a page.

    Raises:
        ArgumentValueError: a layer of the model is not one of attention, or reads keys and values
            of another one.
    """

    def __init__(self, config: Any, page_size: int = 16) -> None:
        text = config.get_text_config(decoder=True)
        kinds, options = get_layer_types_and_kwargs(text)
        for number, kind in enumerate(kinds):
            if kind not in _KINDS:
                raise ArgumentValueError(
                    f"PagedTransformersCache: layer {number} is {kind!r}, "
                    f"expected {' or '.join(map(repr, _KINDS))}"
                )
        self.page_size = page_size
        self.table: PageTable | None = None
        self.sequences: list[CachedSequence] = []
        self._places: dict[tuple[int, int], Tensor] = {}  # of the step that runs
        self._paged = [PagedLayer(self, each.get("sliding_window")) for each in options]
        super().__init__(layers=[*self._paged])

    # ---- what a layer asks for -------------------------------------------------------------------

    def make_room(self, batch: int, length: int, device: torch.device) -> int:
        """Gives the sequences places for ``length`` tokens; returns the number of slots."""
        table = self._table(batch, length, device)
        missing = length - self.sequences[0].length
        if missing > 0:  # else a layer before this one made room
            copies = [copy for s in self.sequences for copy in table.reserve(s, missing)]
            for sequence in self.sequences:
                table.commit(sequence, missing)
            for layer in self._paged:
                layer.copy_pages(copies, table.num_pages)
            self._places.clear()
        return table.num_pages * table.page_size

    def _table(self, batch: int, length: int, device: torch.device) -> PageTable:
        """The table, in which there is room; it doubles where there is not."""
        size = self.page_size
        if self.table is None:
            pages = 2 * batch * -(-length // size)
            self.table = PageTable(pages, size, 2 * batch, None, device, share_prefixes=False)
        table = self.table
        if not self.sequences:
            if batch > table.available_rows:
                table.grow(max_sequences=table.max_sequences + batch)
            self.sequences = [table.open() for _ in range(batch)]
        more = table.pages_of(length) - len(self.sequences[0].pages)
        wanted = batch * (more + 1)  # and one that may have to be copied
        if wanted > table.available_pages or length > table.max_length:
            total = table.num_pages + max(table.num_pages, wanted)
            table.grow(num_pages=total, max_length=total * size)
        return table

    def places(self, begin: int, end: int) -> Tensor:
        """(B, end - begin) int64: where the tokens of each sequence are, page * size + place. The
        layers of a step share them."""
        if (begin, end) not in self._places:
            size, first = self.page_size, begin // self.page_size
            pages = torch.tensor([s.pages[first : -(-end // size)] for s in self.sequences])
            places = torch.arange(begin, end)
            slots = pages[:, places // size - first] * size + places % size
            self._places[begin, end] = slots.to(self.table.device if self.table else None)
        return self._places[begin, end]

    # ---- what generation asks for ----------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        return len(self.sequences) or -1

    def reset(self) -> None:
        self._take([])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._take(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        self._take(torch.arange(len(self.sequences))[indices.cpu()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._take([i for i in range(len(self.sequences)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ArgumentValueError(
                f"crop: tokens_to_remove is {tokens_to_remove}, expected minus their number, or 0"
            )
        if self.table is not None and self.sequences:
            length = self.sequences[0].length + tokens_to_remove
            for sequence in self.sequences:
                self.table.truncate(sequence, max(length, 0))
            self._places.clear()
        for layer in self._paged:
            layer.length = max(layer.length + tokens_to_remove, 0)

    def _take(self, chosen: list[int]) -> None:
        """Makes the chosen sequences the batch."""
        if self.table is None:
            return
        if len(chosen) > self.table.available_rows:
            self.table.grow(max_sequences=self.table.max_sequences + len(chosen))
        self._places.clear()
        before = self.sequences
        self.sequences = [self.table.fork(before[i]) for i in chosen]
        for sequence in before:
            self.table.close(sequence)
        if not chosen:
            for layer in self._paged:
                layer.length = 0


class PagedLayer(CacheLayerMixin):
    """The keys and values of a layer of a :class:`PagedTransformersCache`.

    Args:
        cache: the cache, which gives places to tokens.
        window: the number of keys that a token sees, itself included; None for all.
    """

    is_croppable = True

    def __init__(self, cache: PagedTransformersCache, window: int | None) -> None:
        super().__init__()
        self.cache = cache
        self.window = window
        self.is_sliding = window is not None
        self.length = 0
        self.stores: list[Tensor] = []  # keys and values, (slots, H, D) each

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        states = (key_states, value_states)
        self.stores = [x.new_empty(0, x.shape[1], x.shape[3]) for x in states]
        self.is_initialized = True

    def copy_pages(self, copies: list[tuple[int, int]], num_pages: int) -> None:
        """Brings the memory to ``num_pages``, and copies pages."""
        self._extend(num_pages * self.cache.page_size)
        for store in self.stores if copies else ():
            pages = store.unflatten(0, (-1, self.cache.page_size))
            old, new = torch.tensor(copies, device=store.device).T
            pages[new] = pages[old]

    def _extend(self, slots: int) -> None:
        self.stores = [
            x if len(x) >= slots else torch.cat([x, x.new_empty(slots - len(x), *x.shape[1:])])
            for x in self.stores
        ]

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores the keys and values (B, H, T, D) of the next tokens; returns all that they see, as
        copies (B, H, seen, D)."""
        batch, _heads, count, _dim = key_states.shape
        begin, end = self._first_seen(), self.length + count
        slots = self.cache.make_room(batch, end, key_states.device)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._extend(slots)
        places = self.cache.places(begin, end)
        new = places[:, self.length - begin :].flatten()
        for store, x in zip(self.stores, (key_states, value_states), strict=True):
            store.index_copy_(0, new, x.transpose(1, 2).flatten(0, 1))
        self.length = end
        keys, values = (store[places].transpose(1, 2) for store in self.stores)
        return keys, values

    def _first_seen(self) -> int:
        return 0 if self.window is None else max(self.length - self.window + 1, 0)

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self._first_seen()
        return self.length - first + query_length, first
