# SPDX-License-Identifier: MIT
"""Keys and values in pages against the same without pages."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels.decode import PagedCache
from transformer_kernels.decode._batch import Turn, make_batch

from .conftest import VOCABULARY, Transformer

each_layout = pytest.mark.parametrize("heads_major", [False, True], ids=["tokens", "heads"])


@each_layout
@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_what_is_appended_is_gathered(page_size: int, heads_major: bool) -> None:
    cache = PagedCache(
        2, 6, 3, 8, value_dim=4, page_size=page_size, heads_major=heads_major, dtype=torch.float32
    )
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    k, v = torch.randn(2, 40, 3, 8), torch.randn(2, 40, 3, 4)
    sequences = [cache.open(), cache.open()]
    for begin, end in ((0, 1), (1, 17), (17, 40)):  # the sequences take pages in turn
        for sequence in sequences:
            cache.reserve(sequence, end - begin)
        slots = torch.cat([cache.slots(s, end - begin) for s in sequences])
        for layer in range(2):
            rows = [x[layer, begin:end].repeat(2, 1, 1) for x in (k, v)]
            cache.append(layer, *rows, slots)
        for sequence in sequences:
            cache.commit(sequence, end - begin)
    for sequence in sequences:
        for layer in range(2):
            keys, values = cache.gather(layer, sequence)
            assert torch.equal(keys, k[layer])
            assert torch.equal(values, v[layer])


@each_layout
def test_a_copy_of_a_page_leaves_the_page(heads_major: bool) -> None:
    cache = PagedCache(2, 4, 2, 8, heads_major=heads_major)
    first = cache.open()
    k, v = torch.randn(2, 20, 2, 8)
    cache.reserve(first, 20)
    for layer in range(2):
        cache.append(layer, k, v, cache.slots(first, 20))
    cache.commit(first, 20)
    second = cache.fork(first)
    cache.reserve(second, 1)
    for layer in range(2):
        cache.append(layer, k[:1], v[:1], cache.slots(second, 1))
    cache.commit(second, 1)
    for layer in range(2):
        assert torch.equal(cache.gather(layer, first)[0], k)
        assert torch.equal(cache.gather(layer, second)[0], torch.cat([k, k[:1]]))
        assert torch.equal(cache.gather(layer, second)[1], torch.cat([v, v[:1]]))


def test_forgotten_pages_are_not_gathered() -> None:
    cache = PagedCache(1, 4, 1, 8)
    sequence = cache.open()
    cache.reserve(sequence, 20)
    cache.commit(sequence, 20)
    cache.forget(sequence, 16)
    with pytest.raises(ValueError, match="gather: pages of the sequence were forgotten"):
        cache.gather(0, sequence)


@each_layout
def test_a_transformer_over_pages_is_one_without(heads_major: bool) -> None:
    """In parts of any size, with shared pages and pages out of order, beside others; all that is
    not written is NaN."""
    model = Transformer()
    cache = model.cache(16, heads_major=heads_major)
    tokens = torch.randint(VOCABULARY, (3, 40))
    tokens[1, :20] = tokens[0, :20]
    held = cache.open()
    cache.reserve(held, 60)
    texts = [row.tolist() for row in tokens]
    for parts in ((7, 30, 3), (40,)):
        sequences = [cache.open(text) for text in texts]
        for part in parts:
            turns = []
            for sequence, text in zip(sequences, texts, strict=True):
                rows = text[sequence.length : sequence.length + part]
                cache.reserve(sequence, len(rows))
                turns.append(Turn(sequence, rows, draws=True))
            logits = model(make_batch(cache, turns), cache)
            for sequence, turn in zip(sequences, turns, strict=True):
                cache.commit(sequence, turn.tokens)
        if parts[0] == 7:
            cache.close(held)
            assert [sequence.length for sequence in sequences] == [40] * 3
        for text, row in zip(texts, logits, strict=True):
            torch.testing.assert_close(row, model.dense(text)[-1], rtol=1e-9, atol=1e-9)
        for sequence in sequences:
            cache.close(sequence)
    cache.check()
