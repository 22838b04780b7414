# SPDX-License-Identifier: MIT
"""Pages: who holds them, who shares them, and that none is ever lost."""

from __future__ import annotations

import random

import pytest
import torch

from transformer_kernels.decode import CachedSequence, CacheFullError, PagedCache, PageTable

SIZE = 16


def stored(table: PageTable, tokens: list[int], salt: str | None = None) -> CachedSequence:
    """A sequence whose tokens are all stored."""
    sequence = table.open(tokens, salt)
    table.reserve(sequence, len(tokens) - sequence.length)
    table.commit(sequence, tokens[sequence.length :])
    return sequence


def tokens_of(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def test_lengths_and_tables_follow() -> None:
    table = PageTable(6, SIZE, max_sequences=3)
    first, second = stored(table, tokens_of(17)), stored(table, tokens_of(5, 100))
    assert table.lengths[[first.row, second.row]].tolist() == [17, 5]
    assert table.block_tables[first.row].tolist() == [*first.pages, -1, -1, -1, -1]
    assert len({*first.pages, *second.pages}) == 3
    table.close(first)
    assert table.lengths[second.row] == 5
    assert table.lengths.sum() == 5
    table.check()


def test_tables_stay_where_they_are() -> None:
    table = PageTable(6, SIZE)
    before = table.block_tables.data_ptr(), table.lengths.data_ptr()
    sequence = stored(table, tokens_of(40))
    table.truncate(sequence, 3)
    table.fork(sequence)
    assert (table.block_tables.data_ptr(), table.lengths.data_ptr()) == before


def test_reserved_tokens_do_not_count_before_they_are_stored() -> None:
    table = PageTable(2, SIZE)
    sequence = table.open()
    table.reserve(sequence, 20)
    assert (sequence.length, table.lengths.sum()) == (0, 0)
    assert len(sequence.pages) == 2
    with pytest.raises(ValueError, match="commit: 33 tokens, expected 0 to 32, as reserved"):
        table.commit(sequence, 33)
    table.commit(sequence, 20)
    table.commit(sequence, 12)
    assert table.lengths[sequence.row] == 32


# ---- prefixes -----------------------------------------------------------------------------------


def test_full_pages_of_a_prefix_are_shared() -> None:
    table = PageTable(8, SIZE)
    first = stored(table, tokens_of(40))
    second = table.open(tokens_of(40))
    assert second.length == 32
    assert second.pages == first.pages[:2]
    third = table.open([*tokens_of(16), 999, *tokens_of(23, 17)])
    assert third.pages == first.pages[:1]
    table.check()


def test_the_last_token_is_never_taken_from_a_prefix() -> None:
    table = PageTable(8, SIZE)
    stored(table, tokens_of(32))
    assert table.open(tokens_of(32)).length == 16
    assert table.open(tokens_of(33)).length == 32


def test_a_page_is_found_only_behind_the_pages_before_it() -> None:
    table = PageTable(8, SIZE)
    stored(table, tokens_of(33))
    assert table.open(tokens_of(20, 16)).length == 0


def test_salts_share_nothing() -> None:
    table = PageTable(8, SIZE)
    stored(table, tokens_of(33), salt="a")
    lengths = [table.open(tokens_of(33), salt).length for salt in ("a", "b", None)]
    assert lengths == [32, 0, 0]


def test_unknown_tokens_and_tables_without_sharing() -> None:
    table = PageTable(8, SIZE)
    sequence = table.open()
    table.reserve(sequence, 40)
    table.commit(sequence, 16)
    table.commit(sequence, tokens_of(24, 16))
    assert table.open(tokens_of(40)).length == 0
    table = PageTable(8, SIZE, share_prefixes=False)
    table.close(stored(table, tokens_of(40)))
    assert table.open(tokens_of(40)).length == 0
    table.check()


def test_pages_of_closed_sequences_are_found_until_their_place_is_wanted() -> None:
    table = PageTable(4, SIZE)
    table.close(stored(table, tokens_of(40)))
    assert table.available_pages == 4
    other = stored(table, tokens_of(20, 500))  # takes the two pages without a content
    again = table.open(tokens_of(40))
    assert again.length == 32
    table.close(again)
    table.reserve(other, 13)  # the page that is wanted is the last of the prefix
    assert table.open(tokens_of(40)).length == 16
    table.check()


def test_two_sequences_may_store_the_same_at_once() -> None:
    table = PageTable(4, SIZE)
    both = [table.open(tokens_of(20)) for _ in range(2)]
    for sequence in both:
        table.reserve(sequence, 20)
    for sequence in both:
        table.commit(sequence, tokens_of(20))
    table.check()
    for sequence in both:
        table.close(sequence)
        table.check()
    assert table.open(tokens_of(20)).length == 16


# ---- writing to shared pages --------------------------------------------------------------------


def test_a_shared_page_is_copied_before_it_is_written_to() -> None:
    table = PageTable(4, SIZE)
    first = stored(table, tokens_of(20))
    second = table.fork(first)
    assert second.pages == first.pages
    copies = table.reserve(second, 1)
    assert copies == [(first.pages[1], second.pages[1])]
    assert table.reserve(first, 1) == []  # nobody else reads it now
    table.check()


def test_a_full_page_that_is_cut_and_written_again_is_not_found_any_more() -> None:
    table = PageTable(4, SIZE)
    sequence = stored(table, tokens_of(32))
    table.truncate(sequence, 20)
    assert table.open(tokens_of(33)).length == 32
    table = PageTable(4, SIZE)
    sequence = stored(table, tokens_of(32))
    table.truncate(sequence, 20)
    assert table.reserve(sequence, 1) == []
    assert table.open(tokens_of(33)).length == 16
    table.check()


def test_a_full_page_that_another_sequence_reads_is_copied() -> None:
    table = PageTable(5, SIZE)
    first = stored(table, tokens_of(32))
    second = table.open(tokens_of(33))
    table.truncate(second, 18)
    assert len(table.reserve(second, 1)) == 1
    assert table.open(tokens_of(33)).pages == first.pages
    table.check()


def test_forgotten_pages_are_holes() -> None:
    table = PageTable(4, SIZE, max_length=100)
    sequence = stored(table, tokens_of(50))
    pages = list(sequence.pages)
    table.forget(sequence, 40)
    assert table.block_tables[sequence.row, :4].tolist() == [-1, -1, *pages[2:]]
    assert table.available_pages == 2
    fork = table.fork(sequence)
    table.reserve(sequence, 14)
    table.commit(sequence, tokens_of(14, 50))
    table.check()
    for one in (sequence, fork):
        table.close(one)
    table.check()
    assert table.available_pages == 4


# ---- when there is no room ----------------------------------------------------------------------


def test_pages_that_are_held_are_never_taken() -> None:
    table = PageTable(3, SIZE, max_length=100)
    first, second = stored(table, tokens_of(20)), stored(table, tokens_of(3, 90))
    pages, rows = list(second.pages), table.block_tables.clone()
    message = r"paged cache: 2 more pages are wanted, expected at most 0 \(sequences hold 3 of 3\)"
    with pytest.raises(CacheFullError, match=message):
        table.reserve(second, 40)
    assert second.pages == pages
    assert torch.equal(table.block_tables, rows)
    table.check()
    table.close(first)
    table.reserve(second, 40)
    table.check()


def test_a_copy_needs_a_page_too() -> None:
    table = PageTable(1, SIZE)
    first = stored(table, tokens_of(3))
    second = table.fork(first)
    with pytest.raises(CacheFullError):
        table.reserve(second, 1)
    table.check()


def test_rows_run_out() -> None:
    table = PageTable(4, SIZE, max_sequences=2)
    first, _ = table.open(), table.open()
    for opens in (table.open, lambda: table.fork(first)):
        with pytest.raises(CacheFullError, match="another sequence is wanted, expected at most 2"):
            opens()
    table.check()


def test_growth_keeps_what_is_stored() -> None:
    table = PageTable(2, SIZE, max_sequences=1)
    first = stored(table, tokens_of(30))
    table.grow(num_pages=5, max_sequences=3, max_length=80)
    second = stored(table, tokens_of(30))
    assert second.pages[0] == first.pages[0]
    assert table.block_tables.shape == (3, 5)
    table.check()
    with pytest.raises(ValueError, match="num_pages is 5, expected 2 as allocated"):
        PagedCache(1, 2, 1, 8).grow(num_pages=5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PageTable(0), "PageTable: num_pages is 0, expected at least 1"),
        (lambda: PageTable(4, 17), "PageTable: page_size is 17, expected 16, 64 or 256"),
        (lambda: PageTable(4, max_sequences=0), "max_sequences is 0"),
        (lambda: PagedCache(1, 4, 1, 0), "PagedCache: head_dim is 0"),
        (lambda: PagedCache(0, 4, 1, 8), "PagedCache: num_layers is 0"),
    ],
)
def test_bad_sizes_are_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_calls_are_named() -> None:
    table = PageTable(4, SIZE, max_length=30)
    sequence = stored(table, tokens_of(20))
    with pytest.raises(ValueError, match="would have 31 tokens, expected at most 30"):
        table.reserve(sequence, 11)
    with pytest.raises(ValueError, match="reserve: count is -1"):
        table.reserve(sequence, -1)
    with pytest.raises(ValueError, match="truncate: length is 21, expected 0 to 20"):
        table.truncate(sequence, 21)
    table.close(sequence)
    for call in (table.close, table.fork, lambda s: table.reserve(s, 1)):
        with pytest.raises(ValueError, match="the sequence is closed, or another cache's"):
            call(sequence)
    table.check()


def test_broken_accounting_is_found() -> None:
    table = PageTable(4, SIZE)
    sequence = stored(table, tokens_of(20))
    sequence.pages[1] = sequence.pages[0]
    with pytest.raises(RuntimeError, match=r"page 0 has 1 holders, but stands in 2.*tables tell"):
        table.check()


# ---- at random ----------------------------------------------------------------------------------


class Storm:
    """Random calls on a cache that stores each token as its key; beside it, the tokens that each
    sequence should have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cache = PagedCache(1, 24, 1, 1, max_sequences=10, max_length=150, dtype=torch.float64)
        self.cache.keys.fill_(float("nan"))
        self.wanted: dict[CachedSequence, list[int]] = {}
        self.full = 0

    def act(self) -> None:
        actions = [self.open, self.extend, self.extend, self.cut, self.fork, self.close]
        try:
            self.random.choice(actions)()
        except CacheFullError:
            self.full += 1

    def one(self) -> CachedSequence | None:
        return self.random.choice([*self.wanted]) if self.wanted else None

    def open(self) -> None:
        same = self.random.randrange(0, 60)
        tokens = [7] * same + [self.random.randrange(3) for _ in range(self.random.randrange(40))]
        sequence = self.cache.open(tokens)
        self.wanted[sequence] = tokens[: sequence.length]
        self.store(sequence, tokens[sequence.length :])

    def extend(self) -> None:
        if (sequence := self.one()) is not None:
            room = self.cache.max_length - sequence.length
            count = min(room, self.random.choice((1, 1, 1, 20)))
            self.store(sequence, [self.random.randrange(3) for _ in range(count)])

    def store(self, sequence: CachedSequence, tokens: list[int]) -> None:
        self.cache.reserve(sequence, len(tokens))
        k = torch.tensor(tokens, dtype=torch.float64).view(-1, 1, 1)
        self.cache.append(0, k, k, self.cache.slots(sequence, len(tokens)).long())
        self.cache.commit(sequence, tokens)
        self.wanted[sequence] = self.wanted[sequence] + tokens

    def cut(self) -> None:
        if (sequence := self.one()) is not None:
            length = self.random.randrange(sequence.length + 1)
            self.cache.truncate(sequence, length)
            del self.wanted[sequence][length:]

    def fork(self) -> None:
        if (sequence := self.one()) is not None:
            self.wanted[self.cache.fork(sequence)] = list(self.wanted[sequence])

    def close(self) -> None:
        if (sequence := self.one()) is not None:
            self.cache.close(sequence)
            del self.wanted[sequence]

    def check(self) -> None:
        self.cache.check()
        for sequence, tokens in self.wanted.items():
            keys, _ = self.cache.gather(0, sequence)
            assert keys.flatten().tolist() == tokens


def test_ten_thousand_random_calls() -> None:
    storm = Storm(torch.initial_seed())
    for number in range(10_000):
        storm.act()
        if number % 100 == 99:
            storm.check()
    assert storm.full > 0
    for sequence in [*storm.wanted]:
        storm.cache.close(sequence)
    storm.cache.check()
    assert storm.cache.available_pages == 24
