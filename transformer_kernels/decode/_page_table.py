# SPDX-License-Identifier: MIT
"""Which pages hold the keys and values of which tokens."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._errors import ArgumentValueError, as_count, as_device, as_flag, as_integer
from ._pool import CacheFullError, PagePool

PAGE_SIZES = (16, 64, 256)
NO_PAGE = -1


@dataclass(eq=False)
class CachedSequence:
    """A sequence of a :class:`PageTable`, which alone changes it.

    ``row`` is its row in the tables, ``length`` the number of its tokens that are stored, and
    ``pages`` are its pages in order, -1 for those before a window.
    """

    row: int
    root: bytes  # what its pages share their content with: sequences of the same salt
    length: int = 0
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # from the first on, as far as they are known
    contents: list[bytes] = field(default_factory=list)  # the digests of full pages


class PageTable:
    """Gives the tokens of sequences their places in pages, and shares pages between sequences.

    A step of decoding calls :meth:`reserve` for the tokens that it is going to store, stores them,
    and calls :meth:`commit`; until then lengths are those from before. A page that several
    sequences hold is copied before one of them writes to it. Full pages are found again by their
    tokens and all tokens before, by a cryptographic hash. A page that nobody holds any more stays
    findable until its place is wanted, the least recently used first; pages that are held are
    never taken away.

    Args:
        num_pages: number of pages.
        page_size: 16, 64 or 256 tokens of a page.
        max_sequences: the most sequences at a time, the rows of the tables.
        max_length: the most tokens of a sequence; by default, what all pages together hold.
        device: device of the tables.
        share_prefixes: whether a full page is found by its tokens.

    >>> table = tfk.decode.PageTable(num_pages=4, page_size=16)
    >>> first = table.open()
    >>> table.reserve(first, 20)
    []
    >>> table.commit(first, range(20))
    >>> second = table.open(range(18))
    >>> second.length, second.pages == first.pages[:1]
    (16, True)
    >>> table.block_tables[first.row].tolist()
    [0, 1, -1, -1]
    """

    def __init__(
        self, num_pages: int, page_size: int = 16, max_sequences: int = 8,
        max_length: int | None = None, device: torch.device | str | None = None,
        share_prefixes: bool = True,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.num_pages = as_count(name, "num_pages", num_pages)
        if as_integer(name, "page_size", page_size) not in PAGE_SIZES:
            raise ArgumentValueError(f"{name}: page_size is {page_size}, expected 16, 64 or 256")
        self.page_size = page_size
        self.max_sequences = as_count(name, "max_sequences", max_sequences)
        most = num_pages * page_size
        self.max_length = most if max_length is None else as_count(name, "max_length", max_length)
        self.device = as_device(name, device)
        self.share_prefixes = as_flag(name, "share_prefixes", share_prefixes)
        self._pool = PagePool(num_pages)
        self._sequences: dict[int, CachedSequence] = {}
        self.version = 0  # of the pages of all sequences: another number after each change
        self._free_rows = list(reversed(range(max_sequences)))
        self._make_tables()

    def _make_tables(self) -> None:
        shape = (self.max_sequences, self.pages_of(self.max_length))
        self._host_tables = torch.full(shape, NO_PAGE, dtype=torch.int32)
        self._host_lengths = torch.zeros(self.max_sequences, dtype=torch.int32)
        self._tables = self._host_tables.to(self.device)
        self._lengths = self._host_lengths.to(self.device)
        self._is_stale = False

    # ---- what the device reads -------------------------------------------------------------------

    @property
    def block_tables(self) -> Tensor:
        """(max_sequences, pages of max_length) int32: the page at each place, -1 for none.

        Its address never changes. What the host changed is copied to the device when this is read,
        so a CUDA graph that uses it is replayed after that.
        """
        self._update_device()
        return self._tables

    @property
    def lengths(self) -> Tensor:
        """(max_sequences,) int32: tokens that are stored, 0 for a free row; as ``block_tables``."""
        self._update_device()
        return self._lengths

    def _update_device(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False  # before the copy: what is changed during it is copied next
        lengths = [0] * self.max_sequences
        for row, sequence in list(self._sequences.items()):
            lengths[row] = sequence.length
        self._host_lengths.copy_(torch.tensor(lengths))
        if self._tables is not self._host_tables:
            self._tables.copy_(self._host_tables)
            self._lengths.copy_(self._host_lengths)

    def _write_row(self, sequence: CachedSequence, first: int = 0) -> None:
        """Brings the tables to what a sequence holds, from its page ``first`` on."""
        row = self._host_tables[sequence.row]
        row[first:] = NO_PAGE
        if pages := sequence.pages[first:]:
            row[first : len(sequence.pages)] = torch.tensor(pages, dtype=torch.int32)
        self._is_stale = True
        self.version += 1

    # ---- sequences -------------------------------------------------------------------------------

    @property
    def available_pages(self) -> int:
        """The number of pages that are free, or kept only for their content."""
        return self._pool.available

    @property
    def available_rows(self) -> int:
        """The number of sequences that can still be opened."""
        return len(self._free_rows)

    def pages_of(self, length: int) -> int:
        """The number of pages that ``length`` tokens take."""
        return -(-length // self.page_size)

    def open(self, tokens: Sequence[int] = (), salt: str | None = None) -> CachedSequence:
        """Opens a sequence that will be ``tokens``, and stores as many of them as full pages are
        found for, but not the last, whose logits somebody wants.

        Args:
            tokens: the sequence's tokens, as far as they are known.
            salt: sequences with different ones share nothing (another adapter, another user).

        Returns:
            The sequence; ``length`` tokens of it are stored.

        Raises:
            CacheFullError: there are ``max_sequences`` sequences.
        """
        root = hashlib.blake2b(b"" if salt is None else b"salt " + salt.encode()).digest()
        sequence = self._new(root)
        for content in self._contents(root, tokens, len(tokens) - 1) if self.share_prefixes else ():
            page = self._pool.find(content)
            if page is None:
                break
            self._pool.hold(page)
            sequence.pages.append(page)
            sequence.contents.append(content)
        sequence.length = len(sequence.pages) * self.page_size
        sequence.tokens = list(tokens[: sequence.length])
        self._write_row(sequence)
        return sequence

    def _new(self, root: bytes) -> CachedSequence:
        if not self._free_rows:
            raise CacheFullError(
                f"paged cache: another sequence is wanted, expected at most {self.max_sequences}"
            )
        sequence = CachedSequence(self._free_rows.pop(), root)
        self._sequences[sequence.row] = sequence
        return sequence

    def _contents(self, before: bytes, tokens: Sequence[int], count: int) -> Iterator[bytes]:
        """Yields the digests of the full pages of the first ``count`` tokens, each of which covers
        those before."""
        for end in range(self.page_size, count + 1, self.page_size):
            page = array("q", tokens[end - self.page_size : end])
            before = hashlib.blake2b(before + page.tobytes()).digest()
            yield before

    def reserve(self, sequence: CachedSequence, count: int) -> list[tuple[int, int]]:
        """Makes room for ``count`` more tokens, in pages that no other sequence reads.

        Returns:
            (page, its new copy) where a page that others hold has to be copied: at most one. A
            :class:`PagedCache` has done it.

        Raises:
            ArgumentValueError: the sequence would be longer than ``max_length``.
            CacheFullError: there are too few pages. Nothing was changed.
        """
        self._check_open(sequence)
        end = sequence.length + as_count("reserve", "count", count, least=0)
        if end > self.max_length:
            raise ArgumentValueError(
                f"reserve: the sequence would have {end} tokens, expected at most {self.max_length}"
            )
        pages, size = sequence.pages, self.page_size
        begin, offset = divmod(sequence.length, size)
        last = pages[begin] if count and offset else NO_PAGE
        is_shared = last != NO_PAGE and self._pool.holders[last] > 1
        if end <= len(pages) * size and not is_shared:
            if last != NO_PAGE:
                self._pool.forget_content(last)
            return []
        missing = max(0, self.pages_of(end) - len(pages))
        fresh = self._pool.take(missing + is_shared)
        copies = []
        if is_shared:
            pages[begin] = fresh.pop()
            copies.append((last, pages[begin]))
            self._pool.release(last)
        elif last != NO_PAGE:
            self._pool.forget_content(last)
        pages += fresh
        self._write_row(sequence, begin)
        return copies

    def slots(self, sequence: CachedSequence, count: int) -> Tensor:
        """(count,) int64: where the next ``count`` tokens go, page * page_size + place in it."""
        return torch.tensor(self.slot_list(sequence, count), device=self.device)

    def slot_list(self, sequence: CachedSequence, count: int) -> list[int]:
        """Lists :meth:`slots` on the host."""
        size, begin = self.page_size, sequence.length
        return [
            sequence.pages[place // size] * size + place % size
            for place in range(begin, begin + count)
        ]

    def commit(self, sequence: CachedSequence, tokens: Sequence[int] | int) -> None:
        """Counts tokens that were stored in reserved pages.

        Args:
            tokens: the tokens; where only their number is given, no page from there on is shared.

        Raises:
            ArgumentValueError: there are more than were reserved. Nothing was changed.
        """
        self._check_open(sequence)
        count = tokens if isinstance(tokens, int) else len(tokens)
        end = sequence.length + count
        if count < 0 or self.pages_of(end) > len(sequence.pages):
            room = len(sequence.pages) * self.page_size - sequence.length
            raise ArgumentValueError(f"commit: {count} tokens, expected 0 to {room}, as reserved")
        if not isinstance(tokens, int) and len(sequence.tokens) == sequence.length:
            sequence.tokens += tokens
        sequence.length = end
        self._is_stale = True
        if self.share_prefixes:
            self._offer_full_pages(sequence)

    def _offer_full_pages(self, sequence: CachedSequence) -> None:
        done = len(sequence.contents)
        if len(sequence.tokens) < (done + 1) * self.page_size:
            return
        before = sequence.contents[-1] if done else sequence.root
        tokens = sequence.tokens[done * self.page_size :]
        new = list(self._contents(before, tokens, len(tokens)))
        for page, content in zip(sequence.pages[done:], new, strict=False):
            if page != NO_PAGE:
                self._pool.offer(page, content)
        sequence.contents += new

    def truncate(self, sequence: CachedSequence, length: int) -> None:
        """Forgets the tokens from ``length`` on, and gives back pages that only these were in."""
        self._check_open(sequence)
        if not 0 <= length <= sequence.length:
            raise ArgumentValueError(
                f"truncate: length is {length}, expected 0 to {sequence.length}"
            )
        keep = self.pages_of(length)
        self._release(sequence.pages[keep:])
        del sequence.pages[keep:], sequence.tokens[length:]
        del sequence.contents[length // self.page_size :]
        sequence.length = length
        self._write_row(sequence, keep)

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """Opens a sequence with the same tokens, which shares all pages.

        Raises:
            CacheFullError: there are ``max_sequences`` sequences.
        """
        self._check_open(sequence)
        new = self._new(sequence.root)
        new.length = sequence.length
        new.pages = sequence.pages[: self.pages_of(sequence.length)]
        new.tokens, new.contents = list(sequence.tokens), list(sequence.contents)
        for page in new.pages:
            if page != NO_PAGE:
                self._pool.hold(page)
        self._write_row(new)
        return new

    def forget(self, sequence: CachedSequence, before: int) -> None:
        """Gives back pages whose tokens are all before this one, which no window shows any more."""
        self._check_open(sequence)
        end = min(before, sequence.length) // self.page_size
        self._release(sequence.pages[:end])
        sequence.pages[:end] = [NO_PAGE] * end
        self._write_row(sequence)

    def close(self, sequence: CachedSequence) -> None:
        """Ends a sequence, and gives its pages back."""
        self._check_open(sequence)
        self._release(sequence.pages)
        del self._sequences[sequence.row]
        sequence.pages, sequence.length = [], 0
        self._write_row(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def _release(self, pages: Sequence[int]) -> None:
        """Releases the last page first: of a prefix, that is the first to go."""
        for page in reversed(pages):
            if page != NO_PAGE:
                self._pool.release(page)

    def _check_open(self, sequence: CachedSequence) -> None:
        if self._sequences.get(sequence.row) is not sequence:
            raise ArgumentValueError("paged cache: the sequence is closed, or another cache's")

    # ---- the whole table -------------------------------------------------------------------------

    def grow(
        self, num_pages: int | None = None, max_sequences: int | None = None,
        max_length: int | None = None,
    ) -> None:  # fmt: skip
        """Makes the table larger. The tensors are new ones, so a CUDA graph is captured again.

        Args:
            num_pages, max_sequences, max_length: the new sizes, where they are above today's.
        """
        self.num_pages = max(self.num_pages, num_pages or 0)
        self._pool.grow(self.num_pages)
        rows = max(self.max_sequences, max_sequences or 0)
        self._free_rows = list(reversed(range(self.max_sequences, rows))) + self._free_rows
        self.max_sequences = rows
        self.max_length = max(self.max_length, max_length or 0)
        self._make_tables()
        for sequence in self._sequences.values():
            self._write_row(sequence)

    def check(self) -> None:
        """Checks that no page is lost, held twice by mistake, or told wrongly by the tables.

        Raises:
            RuntimeError: one is, with what is wrong.
        """
        sequences = self._sequences.values()
        held = Counter(page for s in sequences for page in s.pages if page != NO_PAGE)
        faults = self._pool.faults(held)
        if sorted([*self._free_rows, *self._sequences]) != list(range(self.max_sequences)):
            faults.append("rows are lost")
        for s in sequences:
            if self.pages_of(s.length) > len(s.pages):
                faults.append(f"row {s.row} has too few pages for its {s.length} tokens")
            if len(s.contents) > s.length // self.page_size:
                faults.append(f"row {s.row} has digests of pages that are not full")
        tables, lengths = torch.full_like(self._host_tables, NO_PAGE), [0] * self.max_sequences
        for s in sequences:
            tables[s.row, : len(s.pages)] = torch.tensor(s.pages, dtype=torch.int32)
            lengths[s.row] = s.length
        if not torch.equal(tables, self.block_tables.cpu()) or lengths != self.lengths.tolist():
            faults.append("the tables tell something else")
        if faults:
            raise RuntimeError(f"paged cache: {'; '.join(faults)}")

    def __repr__(self) -> str:
        held = self.num_pages - self.available_pages
        return (
            f"{type(self).__name__}({held} of {self.num_pages} pages of {self.page_size} tokens, "
            f"{len(self._sequences)} of {self.max_sequences} sequences)"
        )
