# SPDX-License-Identifier: MIT
"""The cache simulator against caches that are simulated an access at a time, with lists."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from transformer_kernels.hardware.proposals.cache import (
    ADD,
    FIRST,
    LAST,
    LINE,
    LOAD,
    POLICIES,
    STORE,
    Cache,
    Trace,
    least,
    next_uses,
    sample,
    simulate,
    uses_left,
)


def _trace(
    lines: Sequence[int], kinds: Sequence[int] | None = None, hints: Sequence[int] | None = None
) -> Trace:
    count = len(lines)
    return Trace(
        torch.tensor(lines),
        torch.tensor(kinds or [LOAD] * count, dtype=torch.int8),
        torch.tensor(hints or [LAST] * count, dtype=torch.int8),
    )


def _random_trace(lines: int = 40, count: int = 400) -> Trace:
    draw = random.Random(torch.initial_seed())
    return _trace(*(
        [draw.choice(choices) for _ in range(count)]
        for choices in (range(lines), (LOAD, LOAD, STORE, ADD), (FIRST, LAST))
    ))  # fmt: skip


def _lru(trace: Trace, cache: Cache) -> tuple[int, int, int]:
    """Hits, lines that are fetched, lines that are written back."""
    sets: list[dict[int, bool]] = [{} for _ in range(cache.sets)]  # line -> dirty, oldest first
    places = cache.set_of(trace.lines).tolist()
    hits = fetched = written = 0
    for line, kind, place in zip(trace.lines.tolist(), trace.kinds.tolist(), places, strict=True):
        held = sets[place]
        hits += line in held
        fetched += line not in held and kind != STORE
        dirty = held.pop(line, False)
        if len(held) == cache.ways:
            written += held.pop(next(iter(held)))
        held[line] = dirty or kind != LOAD
    return hits, fetched, written + sum(sum(held.values()) for held in sets)


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize(("sets", "ways"), [(1, 4), (4, 2), (3, 5), (64, 1)])
def test_lru_is_that_of_lists(sets: int, ways: int, hashed: bool) -> None:
    trace, cache = _random_trace(), Cache(sets, ways, hashed)
    found = simulate(trace, cache, "lru")
    assert (found.hits, found.fetched, found.written) == _lru(trace, cache)
    assert found.bytes == (found.fetched + found.written) * LINE


def test_lru_by_hand() -> None:
    # 1 2 3 fill the set; 4 puts out 1; 1 puts out 2; 3 and 4 are still there.
    found = simulate(_trace([1, 2, 3, 4, 1, 3, 4]), Cache(1, 3), "lru")
    assert (found.hits, found.fetched, found.written) == (2, 5, 0)


def _most_hits(lines: tuple[int, ...], held: frozenset[int], ways: int) -> int:
    """By trying every choice of what is given up, and of passing by."""
    if not lines:
        return 0
    line, rest = lines[0], lines[1:]
    if line in held:
        return 1 + _most_hits(rest, held, ways)
    if len(held) < ways:
        return _most_hits(rest, held | {line}, ways)
    choices = [held, *(held - {out} | {line} for out in held)]
    return max(_most_hits(rest, choice, ways) for choice in choices)


def test_belady_has_the_most_hits_that_there_can_be() -> None:
    draw = random.Random(torch.initial_seed())
    for _ in range(5):
        lines = tuple(draw.choices(range(5), k=11))
        wanted = _most_hits(lines, frozenset(), 2)
        assert simulate(_trace(lines), Cache(1, 2), "belady").hits == wanted


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_beats_belady_or_moves_less_than_the_least(policy: str) -> None:
    trace = _random_trace()
    for cache in (Cache(1, 6), Cache(4, 3)):
        found = simulate(trace, cache, policy)
        assert found.hits <= simulate(trace, cache, "belady").hits
        assert found.bytes >= least(trace)


@pytest.mark.parametrize("policy", ["lru", "hints", "counted", "pinned", "belady"])
def test_a_cache_that_holds_all_misses_only_what_it_has_not_seen(policy: str) -> None:
    trace = _trace([5, 6, 7] * 4)
    found = simulate(trace, Cache(1, 8), policy)
    assert (found.fetched, found.hits, found.bytes) == (3, 9, least(trace))


def test_a_scan_that_is_too_long_keeps_a_part_where_it_is_pinned() -> None:
    scan = _trace([1, 2, 3, 4] * 5)
    assert simulate(scan, Cache(1, 3), "lru").hits == 0
    assert simulate(scan, Cache(1, 3), "pinned").hits >= 2 * 4
    assert simulate(scan, Cache(1, 3), "belady").hits >= simulate(scan, Cache(1, 3), "pinned").hits


def test_lines_that_are_not_read_again_take_no_place_where_uses_are_counted() -> None:
    lines = [1, 2, *(x for i in range(10) for x in (100 + i, 1, 200 + i, 2))]
    assert simulate(_trace(lines), Cache(1, 2), "counted").hits == 20
    assert simulate(_trace(lines), Cache(1, 2), "lru").hits == 0


def test_a_hint_puts_a_line_out_first() -> None:
    lines, hints = [1, 2, 3, 1], [LAST, FIRST, LAST, LAST]
    assert simulate(_trace(lines, hints=hints), Cache(1, 2), "hints").hits == 1
    assert simulate(_trace(lines), Cache(1, 2), "lru").hits == 0


def test_uses_are_those_that_follow() -> None:
    lines = torch.tensor([7, 8, 7, 7, 9])
    assert uses_left(lines).tolist() == [2, 0, 1, 0, 0]
    assert next_uses(lines)[[0, 2]].tolist() == [2, 3]
    assert (next_uses(lines)[[1, 3, 4]] >= len(lines)).all()


def test_a_sample_of_lines_stands_for_all() -> None:
    whole = _trace([line for _ in range(3) for line in range(6000)])
    chosen = sample(4)(whole.lines)
    part = Trace(whole.lines[chosen], whole.kinds[chosen], whole.hints[chosen])
    for size in (2000, 12000):
        of_all = simulate(whole, Cache.of_bytes(size * LINE, 16), "pinned")
        of_part = simulate(part, Cache.of_bytes(size * LINE, 16, one_in=4), "pinned")
        shares = [found.hits / found.accesses for found in (of_all, of_part)]
        assert shares[0] == pytest.approx(shares[1], abs=0.05)
