# SPDX-License-Identifier: MIT
"""Answers of a server: whole, streamed, and of many clients at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels import serving
from transformer_kernels.generation import _step

from .conftest import Client, Letters, Repeat, repeating, served, tiny_engine

pytest.importorskip("transformer_kernels.serving.app", reason="the extra serve brings it")

CLIENTS = 64
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}


def test_a_completion_is_the_engines(tiny: Client) -> None:
    body = {"prompt": "Ünïcode", "max_tokens": 12, "temperature": 0, "model": "tiny"}
    status, answer = tiny.ask("/v1/completions", body)
    alone = tiny_engine()
    alone.model = tiny.engine.model
    prompt = Letters().encode(body["prompt"])
    parameters = tfk.decode.Parameters(max_new_tokens=12, stop_tokens=Letters.stops)
    expected = alone.generate([prompt], parameters)[0]
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": expected.reason}
    ]
    new = len(expected.tokens)
    assert answer["usage"] == {
        "prompt_tokens": len(prompt), "completion_tokens": new, "total_tokens": len(prompt) + new
    }  # fmt: skip


def test_tokens_are_a_prompt_too(tiny: Client) -> None:
    fields: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    assert tiny.text("abc", **fields) == tiny.text([97, 98, 99], **fields)


def test_a_stream_is_the_whole_in_pieces(tiny: Client) -> None:
    body = {"prompt": "abc", "max_tokens": 40, "seed": 3, "stream_options": {"include_usage": True}}
    *parts, last, usage = tiny.events("/v1/completions", body)
    pieces = [part["choices"][0] for part in (*parts, last)]
    assert all(piece["finish_reason"] is None for piece in pieces[:-1])
    assert pieces[-1]["finish_reason"] in ("stop", "length")
    del body["stream_options"]
    assert "".join(piece["text"] for piece in pieces) == tiny.text(**body)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 3
    assert len({part["id"] for part in (*parts, last, usage)}) == 1


def test_a_chat_answers_whole_and_streamed(tiny: Client) -> None:
    status, answer = tiny.ask("/v1/chat/completions", HELLO)
    assert status == 200
    assert answer["object"] == "chat.completion"
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant"
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    streamed = {**HELLO, "messages": [{"role": "user", "content": parts}]}
    first, *others = tiny.events("/v1/chat/completions", streamed)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in others)
    assert text == message["content"]


def test_without_a_bound_a_chat_fills_the_context() -> None:
    body = {"messages": HELLO["messages"], "temperature": 0}
    with served(repeating(Repeat()), limits=serving.Limits(context=50)) as client:
        _, answer = client.ask("/v1/chat/completions", body)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len("u:hello\n")
    assert answer["usage"]["total_tokens"] == 50 + 1  # nothing follows the last


def says_a_or_b(batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
    logits = torch.zeros(len(batch.outputs), 256)
    logits[:, [ord("a"), ord("b")]] = torch.tensor([2.0, 1.0])
    return logits


def test_a_repetition_penalty_divides_logits_of_tokens_so_far() -> None:
    with served(repeating(says_a_or_b)) as client:
        fields: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
        assert client.text("xyz", **fields) == "aaaa"
        assert client.text("xyz", **fields, repetition_penalty=3) == "abaa"
        assert client.text("a", **fields, repetition_penalty=3) == "baaa"


def test_a_bias_is_added_to_logits() -> None:
    with served(repeating(says_a_or_b)) as client:
        fields: dict[str, Any] = {"max_tokens": 2, "temperature": 0}
        for bias, text in (({}, "aa"), ({"98": 0.5}, "aa"), ({"97": -100, "99": 0.5}, "bb")):
            assert client.text("x", logit_bias=bias, **fields) == text
        body = {**HELLO, "logit_bias": {"122": 100}}
        message = client.ask("/v1/chat/completions", body)[1]["choices"][0]["message"]
        assert message["content"] == "z" * 8


def test_seeds_repeat_draws_and_none_is_another_each_time(tiny: Client) -> None:
    fields: dict[str, Any] = {"max_tokens": 24, "temperature": 2, "stop": []}
    assert tiny.text("x", seed=5, **fields) == tiny.text("x", seed=5, **fields)
    assert len({tiny.text("x", **fields) for _ in range(8)}) > 1


def test_an_application_that_has_ended_may_run_again() -> None:
    app = serving.make_app(engine := repeating(Repeat()), Letters(), "tiny")
    for _ in range(2):
        with serving.in_thread(app) as url:
            assert Client(url, engine).text("x", max_tokens=2, temperature=0) == "aa"


def test_stop_strings_end_the_text_in_front_of_them() -> None:
    def count_up(batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
        return torch.nn.functional.one_hot(batch.tokens[batch.outputs] + 1, 256).float()

    with served(repeating(count_up)) as client:
        body = {"prompt": "a", "max_tokens": 20, "temperature": 0, "stop": ["fgX", "ghi"]}
        _, answer = client.ask("/v1/completions", body)
        assert answer["choices"][0]["text"] == "bcdef"
        assert answer["choices"][0]["finish_reason"] == "stop"
        parts = client.events("/v1/completions", body)
        assert "".join(part["choices"][0]["text"] for part in parts) == "bcdef"
        assert client.text("a", max_tokens=20, temperature=0, stop="c") == "b"


def test_characters_are_never_cut(tiny: Client) -> None:
    """A model of random bytes says mostly what is no text; what is one comes whole."""
    body = {"prompt": "é", "max_tokens": 200, "temperature": 2, "seed": 1}
    pieces = [part["choices"][0]["text"] for part in tiny.events("/v1/completions", body)]
    assert "".join(pieces) == tiny.text(**body)
    euros = repeating(Repeat())
    sign = "€".encode()

    def euro(batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
        after = {sign[0]: sign[1], sign[1]: sign[2]}
        tokens = [after.get(token, sign[0]) for token in batch.tokens[batch.outputs].tolist()]
        return torch.nn.functional.one_hot(torch.tensor(tokens), 256).float()

    euros.model = euro
    with served(euros) as client:
        body = {"prompt": "a", "max_tokens": 8, "temperature": 0}
        parts = client.events("/v1/completions", body)
        assert [part["choices"][0]["text"] for part in parts] == ["€", "€", "\ufffd"]


@pytest.mark.parametrize("weights", [torch.float64, torch.bfloat16])
def test_many_clients_at_once_get_what_each_gets_alone(weights: torch.dtype) -> None:
    if weights is torch.bfloat16 and not _step.is_built():
        pytest.skip("the native library is missing")
    with served(tiny_engine(weights)) as client:
        check_many(client)


def check_many(tiny: Client) -> None:
    """Prompts begin alike, so that pages are shared, and every other client streams."""
    bodies: list[dict[str, Any]] = [
        {
            "prompt": "s" * random.choice([0, 20, 70]) + str(number),
            "max_tokens": random.randint(1, 10), "seed": number,
            "temperature": random.choice([0, 1]),
        }
        for number in range(CLIENTS)
    ]  # fmt: skip

    def ask(number: int) -> str:
        body = bodies[number]
        if number % 2:
            return tiny.text(**body)
        parts = tiny.events("/v1/completions", body)
        return "".join(part["choices"][0]["text"] for part in parts)

    with ThreadPoolExecutor(CLIENTS) as clients:
        together = list(clients.map(ask, range(CLIENTS)))
    for number in random.sample(range(CLIENTS), 16):
        assert together[number] == ask(number)
    assert tiny.engine.status.found > 0
    assert tiny.metric("requests_total") >= CLIENTS
