# SPDX-License-Identifier: MIT
"""Requests that join and leave a batch: their tokens are those that each would have alone."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.decode import (
    Batch,
    CacheFullError,
    Engine,
    EngineFullError,
    PagedCache,
    Parameters,
    Result,
)

from .conftest import VOCABULARY, Sums, Transformer, continued, sums_cache


def engine(num_pages: int = 40, max_sequences: int = 4, **options: Any) -> Engine:
    options.setdefault("max_tokens", 24)
    return Engine(Sums(), sums_cache(num_pages, max_sequences=max_sequences), **options)


def prompts(count: int, longest: int = 60) -> list[list[int]]:
    lengths = torch.randint(1, longest + 1, (count,)).tolist()
    return [torch.randint(VOCABULARY, (length,)).tolist() for length in lengths]


def drain(engine: Engine) -> None:
    while engine.step():
        engine.cache.check()


def is_idle(engine: Engine) -> bool:
    engine.cache.check()
    return engine.cache.available_pages == engine.cache.num_pages


# ---- tokens -------------------------------------------------------------------------------------


def test_every_request_has_its_own_tokens() -> None:
    served = engine()
    asked = prompts(10)
    results = served.generate(asked, Parameters(max_new_tokens=9))
    for prompt, result in zip(asked, results, strict=True):
        assert result == Result(continued(prompt, 9), "", "length")
    assert is_idle(served)


def test_a_text_that_cannot_be_told_ends_its_request_alone() -> None:
    count = 6
    first = next([s] for s in range(1, VOCABULARY) if len({*continued([s], 3)}) == 3)
    bad = continued(first, 3)[2]
    second = next([s] for s in range(1, VOCABULARY) if bad not in continued([s], count))

    def letters(tokens: list[int]) -> str:
        if bad in tokens:
            raise KeyError(bad)
        return "".join(chr(ord("a") + token % 26) for token in tokens)

    served = engine(detokenize=letters)
    numbers = [served.submit(p, Parameters(max_new_tokens=count)) for p in (first, second)]
    stream = served.stream(numbers[0])
    assert [next(stream).token, next(stream).token] == continued(first, 2)
    with pytest.raises(KeyError, match=str(bad)):
        next(stream)
    assert served.result(numbers[1]).tokens == continued(second, count)
    assert is_idle(served)


def test_a_stream_gives_tokens_as_they_come() -> None:
    served = engine()
    asked = prompts(2)
    first, second = (served.submit(p, Parameters(max_new_tokens=5)) for p in asked)
    pieces = list(served.stream(second))
    assert [piece.token for piece in pieces] == continued(asked[1], 5)
    assert [piece.reason for piece in pieces] == [None] * 4 + ["length"]
    assert served.result(first).tokens == continued(asked[0], 5)
    for number in (first, second):
        with pytest.raises(ValueError, match=f"request {number} is unknown, or its end was read"):
            served.stream(number)


def test_a_prompt_as_a_tensor() -> None:
    served = engine()
    assert served.result(served.submit(torch.tensor([3, 4]))).tokens == continued([3, 4], 16)


def test_stop_tokens_end_a_request() -> None:
    served = engine()
    wanted = continued([5, 9], 16)
    stop = wanted[6]
    result = served.result(served.submit([5, 9], Parameters(stop_tokens=(stop, 1000))))
    assert result.reason == ("stop" if wanted.index(stop) < 15 else "length")
    assert result.tokens == wanted[: wanted.index(stop) + 1]
    assert is_idle(served)


# ---- the schedule -------------------------------------------------------------------------------


def test_a_long_prompt_is_cut_and_nobody_waits_for_it() -> None:
    served = engine(max_tokens=16, chunk=10)
    short = served.submit([1, 2], Parameters(max_new_tokens=12))
    served.step()
    long = served.submit(list(range(35)), Parameters(max_new_tokens=2))
    drain(served)
    rows = served.model.rows
    assert rows[:6] == [[2], [1, 10], [1, 10], [1, 10], [1, 5], [1, 1]]
    assert served.result(short).tokens == continued([1, 2], 12)
    assert served.result(long).tokens == continued(list(range(35)), 2)


def test_a_step_has_at_most_its_rows_and_sequences() -> None:
    served = engine(max_sequences=3, max_tokens=8)
    served.generate(prompts(9), Parameters(max_new_tokens=6))
    assert max(map(sum, served.model.rows)) <= 8
    assert max(map(len, served.model.rows)) == 3


def test_equal_prefixes_are_computed_once() -> None:
    served = engine(max_tokens=64)
    prefix = torch.randint(VOCABULARY, (48,)).tolist()
    asked = [[*prefix, i] for i in range(3)]
    served.result(served.submit(asked[0]))
    before = len(served.model.rows)
    assert served.status.found == 0
    results = served.generate(asked[1:])
    assert served.status.found == 2 * 48
    assert served.model.rows[before] == [1, 1]
    assert [r.tokens for r in results] == [continued(p, 16) for p in asked[1:]]


def test_requests_give_pages_up_to_older_ones() -> None:
    """Each fits alone, both together do not: the later one is computed again."""
    served = engine(num_pages=5, max_sequences=2, max_tokens=64)
    asked = [torch.randint(VOCABULARY, (30,)).tolist() for _ in range(2)]
    parameters = Parameters(max_new_tokens=30)
    results = served.generate(asked, parameters)
    assert [r.tokens for r in results] == [continued(p, 30) for p in asked]
    status = served.status
    assert status.given_up > 0
    assert status.rows == sum(map(sum, served.model.rows))
    assert status.rows + status.found > 2 * (30 + 29)
    assert status[:3] == (0, 0, 5)
    assert is_idle(served)


def test_a_request_may_take_the_whole_cache() -> None:
    served = engine(num_pages=2)
    parameters = Parameters(max_new_tokens=13)
    for prompt in prompts(3, 20):
        prompt = prompt + [1] * (20 - len(prompt))
        assert served.result(served.submit(prompt, parameters)).tokens == continued(prompt, 13)
    with pytest.raises(ValueError, match="take 33 places in the cache, expected at most 32"):
        served.submit([1] * 20, Parameters(max_new_tokens=14))


def test_a_cache_that_others_hold() -> None:
    served = engine(num_pages=2)
    other = served.cache.open()
    served.cache.reserve(other, 20)
    number = served.submit([1, 2])
    assert not served.step()
    with pytest.raises(CacheFullError, match="request 0 cannot run, expected a cache that nobody"):
        next(served.stream(number))
    served.cache.close(other)
    assert is_idle(served)


def test_only_so_many_may_wait() -> None:
    served = engine(max_sequences=1, max_waiting=2)
    first, second = served.submit([1]), served.submit([2])
    with pytest.raises(EngineFullError, match="submit: 2 requests wait, expected less than 2"):
        served.submit([3])
    served.step()
    third = served.submit([3])
    assert [served.result(n).tokens for n in (third, first, second)] == [
        continued([token], 16) for token in (3, 1, 2)
    ]


# ---- what a request may not depend on -----------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_do_not_depend_on_neighbours_order_or_pages(temperature: float) -> None:
    model = Transformer()
    asked = prompts(6, 40)
    asked[3] = [*asked[0], 5]

    def run(order: list[int], num_pages: int, **options: Any) -> list[list[int]]:
        served = Engine(model, model.cache(num_pages, max_sequences=4), **options)
        numbers = {
            i: served.submit(
                asked[i], Parameters(20, temperature=temperature, top_p=0.95, top_k=50, seed=i)
            )
            for i in order
        }
        found = [served.result(numbers[i]).tokens for i in sorted(order)]
        assert is_idle(served)
        return found

    alone = [run([i], 8)[0] for i in range(6)]
    assert run([*range(6)], 40) == alone
    assert run([5, 3, 0, 4, 2, 1], 40, max_tokens=9, chunk=5) == alone
    assert run([2, 0, 5, 1, 3, 4], 5) == alone


def test_seeds_and_positions_draw_differently() -> None:
    def flat(batch: Batch, cache: PagedCache) -> Tensor:
        return torch.zeros(len(batch.outputs), VOCABULARY)

    served = Engine(flat, sums_cache(40))
    numbers = [served.submit([1], Parameters(30, temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    first, same, other = (served.result(n).tokens for n in numbers)
    assert first == same != other
    assert len(set(first)) > 5


def test_filters_keep_the_likeliest() -> None:
    logits = torch.randn(VOCABULARY)
    best = logits.argsort(descending=True).tolist()

    def model(batch: Batch, cache: PagedCache) -> Tensor:
        return logits.expand(len(batch.outputs), -1)

    served = Engine(model, sums_cache(40))
    shares = (logits.double() / 3).softmax(-1)[best]
    p = (shares[:2].sum() + shares[2] / 2).item()  # the third is needed to reach it

    def drawn(**options: Any) -> set[int]:
        return set(served.result(served.submit([1], Parameters(300, 3.0, **options))).tokens)

    assert drawn(top_k=1) == {best[0]}
    assert drawn(top_k=3) <= set(best[:3])
    assert drawn(top_p=p) <= set(best[:3])
    assert drawn(top_p=1.0, top_k=2) == set(best[:2])
    assert drawn(top_p=1e-9) == {best[0]}


def test_parameters_of_each_request_are_its_own() -> None:
    """Beside neighbours with other parameters, a request is what it is alone."""
    logits = torch.randn(VOCABULARY)

    def model(batch: Batch, cache: PagedCache) -> Tensor:
        return logits.expand(len(batch.outputs), -1)

    kinds = [
        Parameters(40),
        Parameters(40, temperature=0.7, min_p=0.1),
        Parameters(40, temperature=1.3, typical_p=0.8, seed=3),
        Parameters(40, repetition_penalty=1.5),
        Parameters(40, presence_penalty=0.3, frequency_penalty=0.2),
    ]
    served = Engine(model, sums_cache(40))
    alone = [served.result(served.submit([1, 2], kind)).tokens for kind in kinds]
    numbers = [served.submit([1, 2], kind) for kind in kinds]
    assert [served.result(number).tokens for number in numbers] == alone
    best = int(logits.argmax())
    assert alone[0] == [best] * 40
    assert len(set(alone[4])) > 1  # the likeliest comes to cost more than others


# ---- ends ---------------------------------------------------------------------------------------


def test_a_request_that_waits_or_runs_is_cancelled() -> None:
    served = engine(max_sequences=1)
    running, waiting = served.submit([1, 2]), served.submit([3, 4])
    for _ in range(3):
        served.step()
    result = served.cancel(running)
    assert result == Result(continued([1, 2], 3), "", "cancelled")
    assert served.cancel(running) is None
    assert served.cancel(waiting) == Result([], "", "cancelled")
    assert not served.step()
    assert is_idle(served)


def test_a_client_that_goes_away_gives_its_pages_back() -> None:
    served = engine()
    stream = served.stream(served.submit([1, 2]))
    other = served.submit([3, 4])
    next(stream)
    stream.close()
    assert served.result(other).tokens == continued([3, 4], 16)
    assert is_idle(served)


def test_a_request_is_cancelled_while_the_model_runs() -> None:
    served = engine()
    model = served.model

    def cancels(batch: Batch, cache: PagedCache) -> Tensor:
        if len(model.rows) == 2:
            served.cancel(number)
        return model(batch, cache)

    served.model = cancels
    number, other = served.submit([1, 2]), served.submit([3, 4])
    assert served.result(other).tokens == continued([3, 4], 16)
    assert is_idle(served)


@pytest.mark.parametrize("place", ["model", "draw", "shape"])
def test_an_exception_loses_no_page_and_no_token(place: str) -> None:
    served = engine(num_pages=8)
    model, draw, calls = served.model, served._draw, iter(range(10_000))

    def fails(*arguments: Any) -> Any:
        if next(calls) % 3 == 2:
            if place == "shape":
                return torch.zeros(99, 4)
            raise MemoryError("no luck")
        return (draw if place == "draw" else model)(*arguments)

    if place == "draw":
        served._draw = fails
    else:
        served.model = fails
    asked = prompts(3, 40)
    numbers = [served.submit(prompt) for prompt in asked]
    failures, works = 0, True
    while works:
        try:
            works = served.step()
        except (MemoryError, ValueError):
            failures += 1
        served.cache.check()
    assert failures > 3
    assert [served.result(n).tokens for n in numbers] == [continued(p, 16) for p in asked]
    assert is_idle(served)


@pytest.mark.parametrize(
    ("prompt", "parameters", "message"),
    [
        ([], Parameters(), "submit: prompt_tokens is empty, expected at least 1 token"),
        ([1, -2], Parameters(), "prompt_tokens has something else than integers from 0 on"),
        ([1] * 20 + [1 << 63], Parameters(), "integers from 0 on, below 2"),
        ([1, 2.5], Parameters(), "prompt_tokens has something else than integers from 0 on"),
        ([1], Parameters(max_new_tokens=0), "submit: max_new_tokens is 0, expected at least 1"),
        ([1], Parameters(temperature=-1.0), "submit: temperature is -1"),
        ([1], Parameters(top_k=-1), "submit: top_k is -1"),
        ([1], Parameters(top_p=1.5), "submit: top_p is 1.5"),
        ([1], Parameters(repetition_penalty=0.0), "submit: repetition_penalty is 0"),
        ([1], Parameters(bias={5: 1.0}), "submit: bias is {5: 1.0}, expected a tuple of pairs"),
        ([1], Parameters(bias=((5, 1.0, 2),)), "expected a tuple of pairs of a token and a number"),
        ([1], Parameters(bias=((-5, 1.0),)), "submit: bias has token -5, expected tokens from 0"),
        ([1], Parameters(bias=((5, float("nan")),)), "submit: bias has nan for token 5"),
        (
            [1],
            Parameters(bias=((5, -1e39),)),
            "submit: bias has -1e\\+39 for token 5, expected a f",
        ),
        ([1], Parameters(bias=((5, 1), (5, 2))), "submit: bias has token 5 twice, expected it"),
        ([1], Parameters(log_probs=-1), "submit: log_probs is -1, expected at least 0"),
        ([1], Parameters(seed=1 << 63), "submit: seed is 9223372036854775808, expected an int64"),
        ([1], Parameters(stop="\n"), "submit: stop is '\\\\n', expected a tuple of strings"),
        ([1], Parameters(stop=("x",)), "the engine has no detokenize"),
        ([1], Parameters(stop_tokens=2), "submit: stop_tokens is 2, expected a tuple of integers"),
        ([1], Parameters(stop_tokens=("x",)), "submit: stop_tokens is"),
        ([1], {}, "submit: parameters is dict, expected Parameters"),
    ],
)
def test_bad_requests_are_named(prompt: Any, parameters: Any, message: str) -> None:
    served = engine()
    with pytest.raises((ValueError, TypeError), match=message):
        served.submit(prompt, parameters)
    assert not served.step()


def test_generate_leaves_no_request_behind_where_one_is_bad() -> None:
    served = engine()
    with pytest.raises(ValueError, match="prompt_tokens is empty"):
        served.generate([[1, 2], [3], []])
    assert served.status[:2] == (0, 0)
    assert not served.step()


def test_an_engine_needs_a_row_for_each_sequence() -> None:
    with pytest.raises(ValueError, match="Engine: max_tokens is 3, expected at least 4"):
        engine(max_tokens=3)


# ---- text ---------------------------------------------------------------------------------------


def letters(tokens: list[int]) -> str:
    """Text as a tokenizer of bytes would give it."""
    return bytes(tokens).decode(errors="replace")


def says(text: str) -> Engine:
    """An engine whose model says this, whatever it is asked, and then a zero byte."""
    code = [*text.encode(), 0]

    def model(batch: Batch, cache: PagedCache) -> Tensor:
        places = batch.positions[batch.outputs]
        said = torch.tensor([code[min(place, len(code) - 1)] for place in places.tolist()])
        return torch.nn.functional.one_hot(said, 256).float()

    return Engine(model, sums_cache(40), detokenize=letters)


def spoken(served: Engine, **options: Any) -> tuple[list[str], str | None]:
    options = {"max_new_tokens": 100, "stop_tokens": (0,), **options}
    pieces = list(served.stream(served.submit([1], Parameters(**options))))
    return [piece.text for piece in pieces], pieces[-1].reason


def test_text_waits_for_whole_characters() -> None:
    assert spoken(says("aé€b")) == (["a", "", "é", "", "", "€", "b", ""], "stop")
    assert spoken(says("aé€b"), max_new_tokens=5) == (["a", "", "é", "", "\ufffd"], "length")


def test_pieces_say_where_their_text_begins() -> None:
    for stop in ((), ("€bc",)):  # which holds text back
        served = says("aé€b")
        number = served.submit([1], Parameters(max_new_tokens=9, stop_tokens=(0,), stop=stop))
        begins = [piece.begin for piece in served.stream(number)]
        assert begins == [0, 1, 1, 2, 2, 2, 3, 4]


def test_stop_strings_are_not_in_the_text() -> None:
    texts, reason = spoken(says("one end two"), stop=("three", "end"))
    assert ("".join(texts), reason) == ("one ", "stop")
    texts, reason = spoken(says("one en two"), stop=("end",))
    assert texts[4:8] == ["", "", "en ", "t"]
    assert ("".join(texts), reason) == ("one en two", "stop")
    texts, reason = spoken(says("one en"), stop=("end",), max_new_tokens=6)
    assert (texts[-1], reason) == ("en", "length")


def test_the_result_has_the_text() -> None:
    served = says("yes. no.")
    parameters = Parameters(max_new_tokens=8, stop=(".",))
    assert served.result(served.submit([1], parameters))[1:] == ("yes", "stop")


# ---- threads and storms -------------------------------------------------------------------------


def test_streams_of_many_threads() -> None:
    served = engine(num_pages=12)
    asked = prompts(12, 40)
    found: dict[int, list[int]] = {}

    def client(number: int) -> None:
        request = served.submit(asked[number], Parameters(max_new_tokens=10))
        found[number] = [piece.token for piece in served.stream(request)]

    threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert found == {i: continued(prompt, 10) for i, prompt in enumerate(asked)}
    assert is_idle(served)


def test_a_stream_from_another_thread_than_the_steps() -> None:
    served = engine()
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            if not served.step():
                is_over.wait(0.001)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    for prompt in prompts(5):
        tokens = [piece.token for piece in served.stream(served.submit(prompt))]
        assert tokens == continued(prompt, 16)
    is_over.set()
    thread.join(60)
    assert is_idle(served)


def test_ten_thousand_random_submits_cancels_and_steps() -> None:
    """With failing steps, in a cache that is too small."""
    chance = random.Random(torch.initial_seed())
    served = engine(num_pages=16, max_sequences=6)
    model = served.model

    def fails_sometimes(batch: Batch, cache: PagedCache) -> Tensor:
        if chance.random() < 0.02:
            raise MemoryError
        return model(batch, cache)

    served.model = fails_sometimes
    open_requests: dict[int, tuple[list[int], int]] = {}
    for count in range(10_000):
        what = chance.random()
        if what < 0.2 and len(open_requests) < 20:
            prompt = [chance.randrange(3) for _ in range(chance.choice((1, 5, 20, 50)))]
            new = chance.randrange(1, 20)
            number = served.submit(prompt, Parameters(max_new_tokens=new))
            open_requests[number] = (prompt, new)
        elif what < 0.3 and open_requests:
            number = chance.choice([*open_requests])
            prompt, _ = open_requests.pop(number)
            result = served.cancel(number)
            assert result.tokens == continued(prompt, len(result.tokens))
        elif what < 0.5:
            with contextlib.suppress(MemoryError):
                served.step()
        if count % 100 == 99:
            served.cache.check()
    served.model = model
    for number, (prompt, new) in open_requests.items():
        assert served.result(number).tokens == continued(prompt, new)
    assert is_idle(served)
