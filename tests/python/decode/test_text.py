# SPDX-License-Identifier: MIT
"""Text of tokens that come one at a time."""

from __future__ import annotations

import random

import pytest
import torch

from transformer_kernels.decode import Engine, PagedCache, Parameters
from transformer_kernels.decode._text import TextStream

# Characters of one to four bytes, and bytes that begin, continue or never make one.
PARTS = [*(c.encode() for c in "aé€🙂 "), *(bytes([b]) for b in b"\x80\xbf\xc3\xe2\xf0\xed\xff")]


def decoder(words: list[bytes]):
    return lambda tokens: b"".join(words[token] for token in tokens).decode("utf-8", "replace")


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """The bytes in tokens of one to three."""
    words = []
    while data:
        size = chance.choice([1, 1, 1, 2, 3])
        words.append(data[:size])
        data = data[size:]
    return words


@pytest.mark.parametrize("length", [3, 12, 300])
def test_pieces_are_the_whole_text(length: int) -> None:
    chance = random.Random(random.random())
    for _ in range(2000 // length):
        share = chance.choice([0.0, 0.1, 0.9])
        cutoff = 5 if chance.random() < share else len(PARTS)
        data = b"".join(chance.choice(PARTS[:cutoff]) for _ in range(length))
        words = cut(data, chance)
        stream = TextStream(decoder(words), ())
        pieces = [stream.push(token) for token in range(len(words))]
        assert "".join(pieces) + stream.flush() == data.decode("utf-8", "replace")


def test_no_piece_ends_inside_a_character() -> None:
    words = [bytes([byte]) for byte in "aé€🙂b".encode()]
    stream = TextStream(decoder(words), ())
    pieces = [stream.push(token) for token in range(len(words))]
    assert [piece for piece in pieces if piece] == list("aé€🙂b")
    assert stream.flush() == ""


def test_what_is_no_text_is_not_decoded_again_and_again() -> None:
    words, longest = [b"\xff"] * 500, 0

    def decode(tokens: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return decoder(words)(tokens)

    stream = TextStream(decode, ())
    pieces = [stream.push(token) for token in range(500)]
    assert "".join(pieces) + stream.flush() == "\ufffd" * 500
    assert longest < 100


def test_taken_pieces_are_new_ones() -> None:
    def count_up(batch, _):
        return torch.nn.functional.one_hot(batch.tokens[batch.outputs] + 1, 100).float()

    engine = Engine(count_up, PagedCache(num_layers=1, num_pages=4, num_heads=1, head_dim=1))
    number = engine.submit([1], Parameters(max_new_tokens=3))
    assert engine.take(number) == []
    engine.step()
    assert [piece.token for piece in engine.take(number)] == [2]
    assert engine.take(number) == []
    while engine.step():
        pass
    assert [(piece.token, piece.reason) for piece in engine.take(number)] == [
        (3, None),
        (4, "length"),
    ]
    with pytest.raises(ValueError, match="take: request 0 is unknown, or its end was read"):
        engine.take(number)


def test_what_detokenize_raises_is_raised_by_take() -> None:
    def broken(tokens: list[int]) -> str:
        raise KeyError("no such token")

    def zero(batch, _):
        return torch.zeros(len(batch.outputs), 4)

    cache = PagedCache(num_layers=1, num_pages=4, num_heads=1, head_dim=1)
    engine = Engine(zero, cache, detokenize=broken)
    number = engine.submit([1], Parameters(max_new_tokens=3))
    engine.step()
    with pytest.raises(KeyError, match="no such token"):
        engine.take(number)
    cache.check()
