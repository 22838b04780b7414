# SPDX-License-Identifier: MIT
"""Who holds which page, and which pages can be found by their content."""

from __future__ import annotations

from collections import OrderedDict


class CacheFullError(RuntimeError):
    """There are too few pages or rows for what is wanted; nothing was changed."""


class PagePool:
    """Pages by number. A page is free, held by one or more sequences, or idle: held by nobody, and
    kept for its content until another page is wanted.

    Args:
        num_pages: number of pages.
    """

    def __init__(self, num_pages: int) -> None:
        self.holders = [0] * num_pages
        self._free = list(reversed(range(num_pages)))
        self._idle: OrderedDict[int, None] = OrderedDict()  # the least recently used is first
        self._page_of: dict[bytes, int] = {}
        self._content_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """The number of pages that :meth:`take` can give."""
        return len(self._free) + len(self._idle)

    def grow(self, num_pages: int) -> None:
        """Adds free pages, up to ``num_pages``."""
        self._free = list(reversed(range(len(self.holders), num_pages))) + self._free
        self.holders += [0] * (num_pages - len(self.holders))

    def take(self, count: int) -> list[int]:
        """Gives ``count`` pages, each held once: free ones, then those idle for longest, whose
        content is forgotten.

        Raises:
            CacheFullError: fewer are available.
        """
        if count > self.available:
            total = len(self.holders)
            raise CacheFullError(
                f"paged cache: {count} more pages are wanted, expected at most {self.available} "
                f"(sequences hold {total - self.available} of {total})"
            )
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self.holders[page] = 1
        return pages

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self.forget_content(page)
        return page

    def hold(self, page: int) -> None:
        """Adds a holder to a page that is held or idle."""
        self._idle.pop(page, None)
        self.holders[page] += 1

    def release(self, page: int) -> None:
        """Takes a holder off a page."""
        self.holders[page] -= 1
        if self.holders[page] == 0:
            if page in self._content_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def find(self, content: bytes) -> int | None:
        """The page that has this content."""
        return self._page_of.get(content)

    def offer(self, page: int, content: bytes) -> None:
        """Lets a held page be found by its content, unless another one is already."""
        if content not in self._page_of:
            self._page_of[content] = page
            self._content_of[page] = content

    def forget_content(self, page: int) -> None:
        """Ends that a page is found by its content, because it will be overwritten."""
        content = self._content_of.pop(page, None)
        if content is not None:
            del self._page_of[content]

    def faults(self, held: dict[int, int]) -> list[str]:
        """Lists contradictions to ``held``, the number of sequences that each page stands in."""
        pages = range(len(self.holders))
        found = [
            f"page {page} has {self.holders[page]} holders, but stands in {held.get(page, 0)}"
            for page in pages
            if self.holders[page] != held.get(page, 0)
        ]
        states = [*self._free, *self._idle, *(page for page in pages if self.holders[page])]
        if sorted(states) != list(pages):
            found.append("pages are lost, or in two states at once")
        if {page: content for content, page in self._page_of.items()} != self._content_of:
            found.append("the index of contents contradicts itself")
        if set(self._content_of) & set(self._free) or set(self._idle) - set(self._content_of):
            found.append("a free page has a content, or an idle one has none")
        return found
