# SPDX-License-Identifier: MIT
"""Attention over pages against attention over a cache without pages, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.decode import PagedAttention, PagedCache
from transformer_kernels.decode._batch import Turn, make_batch

HEADS, KV_HEADS, DIM = 4, 2, 16
LENGTHS, COUNTS = (0, 33, 1, 16), (1, 1, 7, 20)  # before the step, and in it
OPTIONS = {
    "plain": {},
    "window": {"window": 9},
    "scores": {"softcap": 3.0, "scale": 0.3, "sinks": torch.linspace(-1, 1, HEADS)},
}


def filled(dtype: torch.dtype, heads_major: bool) -> tuple[PagedCache, list[Any], Tensor, Tensor]:
    """A cache with sequences in pages out of order, NaN elsewhere, and their keys and values."""
    cache = PagedCache(1, 16, KV_HEADS, DIM, heads_major=heads_major, dtype=dtype)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    k, v = torch.randn(2, len(LENGTHS), 64, KV_HEADS, DIM).to(dtype)
    sequences = [cache.open() for _ in LENGTHS]
    for begin in range(0, max(LENGTHS), 8):
        for i, sequence in enumerate(sequences):
            count = min(8, max(LENGTHS[i] - begin, 0))
            cache.reserve(sequence, count)
            rows = slice(begin, begin + count)
            cache.append(0, k[i, rows], v[i, rows], cache.slots(sequence, count).long())
            cache.commit(sequence, count)
    return cache, sequences, k, v


def dense(q: Tensor, k: Tensor, v: Tensor, length: int, **options: Any) -> Tensor:
    """Attention of one sequence alone, over a cache without pages."""
    window = options.pop("window", None)
    out: Tensor = tfk.functional.attention_with_kv_cache(
        q[None], k[None], v[None], lengths=length + len(q), causal=True,
        window=(-1 if window is None else window - 1, 0), **options,
    )  # fmt: skip
    return out[0]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("heads_major", [False, True], ids=["tokens", "heads"])
def test_pages_and_neighbours_change_no_bit(heads_major: bool, kind: str) -> None:
    cache, sequences, k, v = filled(torch.float32, heads_major)
    pairs = list(zip(sequences, COUNTS, strict=True))
    for sequence, count in pairs:
        cache.reserve(sequence, count)
    batch = make_batch(cache, [Turn(s, [0] * count, draws=True) for s, count in pairs])
    q = torch.randn(sum(COUNTS), HEADS, DIM)
    ends = [length + count for length, count in zip(LENGTHS, COUNTS, strict=True)]
    new_k, new_v = (
        torch.cat([x[i, LENGTHS[i] : end] for i, end in enumerate(ends)]) for x in (k, v)
    )
    found = PagedAttention(batch, cache)(0, q, new_k, new_v, **OPTIONS[kind])
    for i, rows in enumerate(q.split(COUNTS)):
        expected = dense(rows, k[i], v[i], LENGTHS[i], **OPTIONS[kind])
        assert torch.equal(found.split(COUNTS)[i], expected)
    for i, (sequence, count) in enumerate(pairs):
        cache.commit(sequence, count)
        assert torch.equal(cache.gather(0, sequence)[0], k[i, : ends[i]])


@pytest.mark.parametrize("kind", OPTIONS)
def test_gathered_keys_give_what_pages_give(kind: str) -> None:
    """Dtypes and devices that the op over pages does not take."""
    found = []
    state = torch.get_rng_state()
    for dtype in (torch.float32, torch.float64):
        torch.set_rng_state(state)
        cache, sequences, k, v = filled(dtype, heads_major=False)
        for sequence in sequences:
            cache.reserve(sequence, 2)
        batch = make_batch(cache, [Turn(s, [0, 0], draws=True) for s in sequences])
        q = torch.randn(2 * len(LENGTHS), HEADS, DIM).to(dtype)
        new = [x[:, -2:].flatten(0, 1) for x in (k, v)]
        options = {
            name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in OPTIONS[kind].items()
        }
        found.append(PagedAttention(batch, cache)(0, q, *new, **options).double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_sequences_without_pages_change_nothing_of_others(device: str) -> None:
    """The formula gives their rows the first place of page 0, where another sequence may write."""
    k, v, q = torch.randn(3, 5, 1, KV_HEADS, DIM, device=device)
    cache = torch.zeros(2, 2, 16, KV_HEADS, DIM, device=device)
    tables = torch.full((5, 2), -1, dtype=torch.int32, device=device)
    tables[2] = torch.tensor([1, 0])  # its 17th token is the first of page 0
    lengths = torch.tensor([0, 0, 16, 0, 0], dtype=torch.int32, device=device)
    out: Tensor = tfk.functional.attention_with_kv_cache(
        q, *cache, k, v, lengths=lengths, page_table=tables, causal=True, backend="reference"
    )
    assert torch.equal(cache[0, 0, 0], k[2, 0])
    assert torch.equal(cache[1, 0, 0], v[2, 0])
    assert int(cache.count_nonzero()) == 2 * KV_HEADS * DIM
    assert not out[[0, 1, 3, 4]].any()
