# SPDX-License-Identifier: MIT
"""Requests with a bias, and requests that ask for log-probabilities, beside others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.decode import Batch, Engine, PagedCache, Parameters, Piece

from .conftest import VOCABULARY, Sums, continued, following, sums_cache


def engine(num_pages: int = 40, **options: Any) -> Engine:
    return Engine(Sums(), sums_cache(num_pages, max_sequences=4), max_tokens=24, **options)


def prompts(count: int) -> list[list[int]]:
    return [torch.randint(VOCABULARY, (random.randint(1, 20),)).tolist() for _ in range(count)]


def is_idle(engine: Engine) -> bool:
    engine.cache.check()
    return engine.cache.available_pages == engine.cache.num_pages


def biased(prompt: list[int], parameters: Parameters) -> list[int]:
    """The tokens of :class:`Sums` under a bias; of equal logits, the first."""
    tokens = list(prompt)
    for _ in range(parameters.max_new_tokens):
        logits = [0.0] * VOCABULARY
        logits[following(tokens)] = 1.0
        for token, number in parameters.bias:
            logits[token] += number
        tokens.append(logits.index(max(logits)))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("num_pages", [40, 4], ids=["room", "pages are given up"])
def test_a_bias_is_added_to_the_logits_of_its_request_alone(num_pages: int) -> None:
    """Prompts begin alike, so that pages are shared."""
    prefix = torch.randint(VOCABULARY, (30,)).tolist()
    served = engine(num_pages)
    asked = []
    for number in range(6):
        others = random.sample(range(VOCABULARY), 4 * (number % 3))
        likely = continued([*prefix, number], 2) if number % 2 else []
        bias = {token: random.choice((-2, 0.5, 1, 1.5)) for token in (*others, *likely)}
        asked.append(([*prefix, number], Parameters(8, bias=tuple(bias.items()))))
    numbers = [served.submit(*each) for each in asked]
    assert [served.result(n).tokens for n in numbers] == [biased(*each) for each in asked]
    assert served.status.found > 0
    assert (served.status.given_up > 0) == (num_pages < 40)
    assert is_idle(served)


def test_a_bias_comes_before_penalties() -> None:
    def model(batch: Batch, cache: PagedCache) -> Tensor:
        return torch.tensor([[-1.0, 2.0, 0.0]]).expand(len(batch.outputs), -1)

    served = Engine(model, sums_cache(40))
    kind = Parameters(4, repetition_penalty=4.0, bias=((0, 4.0),))  # not -4 + 4
    assert served.result(served.submit([0], kind)).tokens == [1, 0, 0, 0]


def test_a_bias_beyond_the_vocabulary_is_named() -> None:
    kind = Parameters(bias=((3, 1.0), (VOCABULARY, 1.0)))
    message = f"bias has token {VOCABULARY}, expected less than {VOCABULARY}"
    with pytest.raises(ValueError, match=f"submit: {message}"):
        engine(vocab_size=VOCABULARY).submit([1], kind)
    unchecked = engine()
    number = unchecked.submit([1], kind)
    with pytest.raises(ValueError, match=f"engine: {message}"):
        unchecked.step()
    unchecked.cancel(number)
    assert is_idle(unchecked)


def test_log_probabilities_are_those_of_the_model() -> None:
    """Before all parameters; requests that ask for none share steps, and tokens stay the same."""
    table = 3 * torch.randn(VOCABULARY, VOCABULARY)  # what follows a token

    def model(batch: Batch, cache: PagedCache) -> Tensor:
        return table[batch.tokens[batch.outputs]]

    kinds: list[dict[str, Any]] = [
        {"log_probs": 0}, {"log_probs": 3, "temperature": 2.0, "top_k": 9, "seed": 4},
        {"log_probs": 2 * VOCABULARY, "presence_penalty": 1.0}, {"log_probs": None},
        {"log_probs": 1, "bias": ((5, 100.0),)},
    ]  # fmt: skip
    served = Engine(model, sums_cache(40, max_sequences=len(kinds)))
    asked = prompts(len(kinds))
    numbers = [served.submit(p, Parameters(6, **k)) for p, k in zip(asked, kinds, strict=True)]
    streams = [list(served.stream(number)) for number in numbers]
    for prompt, kind, pieces in zip(asked, kinds, streams, strict=True):
        tokens, count = [piece.token for piece in pieces], kind["log_probs"]
        quiet = Parameters(6, **{**kind, "log_probs": None})
        assert tokens == served.result(served.submit(prompt, quiet)).tokens
        rows = table[[prompt[-1], *tokens[:-1]]].double().log_softmax(1)
        for piece, row in zip(pieces, rows, strict=True):
            if count is None:
                assert piece.log_probs is None
            else:
                check_log_probs(piece, row, min(count, VOCABULARY))
    assert is_idle(served)


def check_log_probs(piece: Piece, row: Tensor, count: int) -> None:
    """Two tokens may be as likely as each other, up to rounding."""
    assert piece.log_probs is not None
    number, likeliest = piece.log_probs
    assert abs(number - row[piece.token]) < 1e-4
    assert len({token for token, _ in likeliest}) == count
    best = row.sort(descending=True).values[:count]
    for (token, found), wanted in zip(likeliest, best, strict=True):
        assert abs(found - wanted) < 1e-4
        assert abs(found - row[token]) < 1e-4


def test_a_draw_of_ones_own_tells_no_log_probabilities() -> None:
    served = engine(draw=lambda logits, _: logits.argmax(1))
    with pytest.raises(ValueError, match="log_probs is 2, expected None, because the engine has a"):
        served.submit([1], Parameters(log_probs=2))
