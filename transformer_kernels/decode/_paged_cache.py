# SPDX-License-Identifier: MIT
"""Keys and values of all layers, in pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import DTYPES_OF_CPP, ArgumentValueError, as_count, as_flag, check_dtype
from ._page_table import NO_PAGE, CachedSequence, PageTable


class PagedCache(PageTable):
    """A :class:`PageTable` with memory for keys and values, allocated once.

    ``keys`` are (num_layers, num_pages, page_size, num_heads, head_dim), or (num_layers, num_pages,
    num_heads, page_size, head_dim) with ``heads_major``, and ``values`` likewise; ``keys[layer]``
    is the ``k_cache`` of attention over a paged cache.

    Args:
        num_layers: number of layers.
        num_pages: number of pages, which hold ``page_size`` tokens of all layers.
        num_heads: number of heads of keys and values.
        head_dim: D, the channels of a key's head.
        value_dim: the channels of a value's head; by default those of a key's.
        page_size: 16, 64 or 256 tokens of a page.
        heads_major: whether a page holds head after head, instead of token after token.
        max_sequences: the most sequences at a time.
        max_length: the most tokens of a sequence; by default, what all pages together hold.
        device: device of the tensors.
        dtype: dtype of the keys and values.
        share_prefixes: whether full pages are shared by sequences that begin alike.

    >>> cache = tfk.decode.PagedCache(num_layers=2, num_pages=4, num_heads=2, head_dim=8)
    >>> sequence = cache.open()
    >>> cache.reserve(sequence, 3)
    []
    >>> k, v = torch.randn(2, 3, 2, 8)
    >>> for layer in range(2):
    ...     cache.append(layer, k, v, cache.slots(sequence, 3))
    >>> cache.commit(sequence, [5, 6, 7])
    >>> keys, values = cache.gather(0, sequence)
    >>> keys.shape
    torch.Size([3, 2, 8])
    """

    def __init__(
        self, num_layers: int, num_pages: int, num_heads: int, head_dim: int, *,
        value_dim: int | None = None, page_size: int = 16, heads_major: bool = False,
        max_sequences: int = 8, max_length: int | None = None,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
        share_prefixes: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_pages, page_size, max_sequences, max_length, device, share_prefixes)
        self.heads_major = as_flag("PagedCache", "heads_major", heads_major)
        check_dtype("PagedCache", "dtype", dtype, *DTYPES_OF_CPP)
        self.num_layers = as_count("PagedCache", "num_layers", num_layers)
        self.num_heads = as_count("PagedCache", "num_heads", num_heads)
        inner = (num_heads, page_size) if heads_major else (page_size, num_heads)
        shape = (num_layers, num_pages, *inner)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.keys = torch.empty(*shape, as_count("PagedCache", "head_dim", head_dim), **options)
        dim = head_dim if value_dim is None else as_count("PagedCache", "value_dim", value_dim)
        self.values = torch.empty(*shape, dim, **options)

    def reserve(self, sequence: CachedSequence, count: int) -> list[tuple[int, int]]:
        copies = super().reserve(sequence, count)
        for page, copy in copies:
            self.keys[:, copy] = self.keys[:, page]
            self.values[:, copy] = self.values[:, page]
        return copies

    def grow(
        self, num_pages: int | None = None, max_sequences: int | None = None,
        max_length: int | None = None,
    ) -> None:  # fmt: skip
        """Refused where pages are added: their memory is allocated once."""
        if num_pages is not None and num_pages > self.num_pages:
            raise ArgumentValueError(
                f"PagedCache: num_pages is {num_pages}, expected {self.num_pages} as allocated"
            )
        super().grow(None, max_sequences, max_length)

    def append(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Writes a layer's keys (N, num_heads, head_dim) and values of N tokens to their slots.

        Args:
            layer: index of the layer.
            k, v: keys and values of the tokens, of any sequences.
            slots: (N,) int64, as :meth:`slots` gives them.
        """
        for pages, x in ((self.keys[layer], k), (self.values[layer], v)):
            x = x.to(pages.dtype)
            if self.heads_major:
                page, place = slots // self.page_size, slots % self.page_size
                pages[page, :, place] = x
            else:
                pages.flatten(0, 1).index_copy_(0, slots, x)

    def gather(self, layer: int, sequence: CachedSequence) -> tuple[Tensor, Tensor]:
        """Copies a sequence's keys (length, num_heads, head_dim) and values of one layer.

        Raises:
            ArgumentValueError: pages of it were forgotten.
        """
        if NO_PAGE in sequence.pages:
            raise ArgumentValueError("gather: pages of the sequence were forgotten")
        pages = torch.tensor(sequence.pages, dtype=torch.int64, device=self.device)
        return (
            self._dense(self.keys[layer, pages], sequence.length),
            self._dense(self.values[layer, pages], sequence.length),
        )

    def _dense(self, pages: Tensor, length: int) -> Tensor:
        token_major = pages.transpose(1, 2) if self.heads_major else pages
        return token_major.flatten(0, 1)[:length]
