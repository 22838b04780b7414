# SPDX-License-Identifier: MIT
"""Requests that a server does not answer, and what it says instead."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from transformer_kernels import serving

from .conftest import PATIENCE, Client, Repeat, repeating, served, tiny_engine, wait_until

pytest.importorskip("transformer_kernels.serving.app", reason="the extra serve brings it")

TOKEN = "correct horse"
LIMITS = serving.Limits(body_bytes=2000, new_tokens=50, context=100)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def bounded() -> Iterator[Client]:
    with served(tiny_engine(), limits=LIMITS) as client:
        yield client


def refused(answer: tuple[int, Any], status: int, words: str) -> dict[str, Any]:
    found, body = answer
    assert found == status, body
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    assert words in body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "Field required"),
        ({"prompt": 5}, "prompt", "a valid string or a list of tokens, got 5"),
        ({"prompt": [1, -1]}, "prompt", "greater than or equal to 0, got -1"),
        ({"prompt": "x", "n": 2}, "n", "Input should be 1, got 2"),
        ({"prompt": "x", "temperature": -1}, "temperature", "a number from 0 to 2, got -1"),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "from 0 to 2, got string"),
        ({"prompt": "x", "top_p": 0}, "top_p", "greater than 0 and at most 1, got 0"),
        ({"prompt": "x", "top_k": 1.5}, "top_k", "a whole number greater than or equal to 1 and"),
        ({"prompt": "x", "min_p": 1.5}, "min_p", "from 0 to 1, got 1.5"),
        ({"prompt": "x", "presence_penalty": 2.5}, "presence_penalty", "from -2 to 2, got 2.5"),
        ({"prompt": "x", "frequency_penalty": []}, "frequency_penalty", "to 2, got array"),
        ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty", "from 0.01 to 100, got 0"),
        ({"prompt": "x", "repetition_penalty": 101}, "repetition_penalty", "to 100, got 101"),
        ({"prompt": "x", "logit_bias": [1]}, "logit_bias", "an object of tokens and numbers from"),
        ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", "or equal to 100, got 101"),
        ({"prompt": "x", "logit_bias": {"1": True}}, "logit_bias", "got true"),
        ({"prompt": "x", "logit_bias": {"1": None}}, "logit_bias", "got null"),
        ({"prompt": "x", "logit_bias": {"01": 1}}, "logit_bias", "numbers of tokens as names"),
        ({"prompt": "x", "logit_bias": {"-1": 1}}, "logit_bias", "numbers of tokens as names"),
        ({"prompt": "x", "logit_bias": {"٣": 1}}, "logit_bias", "numbers of tokens as names"),
        ({"prompt": "x", "logit_bias": {"256": 1}}, "logit_bias", "256, expected less than 256"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "greater than or equal to 1, got 0"),
        ({"prompt": "x", "max_tokens": 51}, "max_tokens", "expected at most 50"),
        ({"prompt": "x", "max_tokens": 10**30}, "max_tokens", ""),
        ({"prompt": "x", "seed": 2**63}, "seed", "64 bits, got 9223372036854775808"),
        ({"prompt": "x", "seed": 10**30}, "seed", "64 bits, got number"),
        ({"prompt": "x", "stream": 1}, "stream", "got 1"),
        ({"prompt": "x", "stop": [""]}, "stop", "at least 1"),
        ({"prompt": "x", "stop": ["x"] * 17}, "stop", "at most 16"),
        ({"prompt": "x", "logprobs": 6}, "logprobs", "a whole number from 0 to 5, got 6"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "a whole number from 0 to 5, got true"),
        ({"prompt": "x", "best_of": 3}, "best_of", "Extra inputs are not permitted"),
        ({"prompt": ""}, None, "prompt_tokens is empty"),
        ({"prompt": [256]}, None, "token 256, expected less than 256"),
        ({"prompt": "x" * 90}, None, "more than the context of 100"),
        ({"prompt": "x" * 101, "max_tokens": 1}, None, "more than the context of 100"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    bounded: Client, fields: dict[str, Any], param: str | None, words: str
) -> None:
    error = refused(bounded.ask("/v1/completions", fields), 400, words)
    assert (error["param"] or "").partition(".")[0] == (param or "")
    assert error["type"] == "invalid_request_error"


def test_what_is_wrong_in_very_many_places_is_not_listed() -> None:
    with served(repeating(Repeat())) as client:
        answer = client.ask("/v1/completions", {"prompt": [-1] * 1001})
        assert refused(answer, 400, "the body is wrong in 1002 places")["param"] is None


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "tool", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 1}],
     [{"role": "user", "content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]}]],
)  # fmt: skip
def test_messages_that_are_none(bounded: Client, messages: list[Any]) -> None:
    error = refused(bounded.ask("/v1/chat/completions", {"messages": messages}), 400, "messages")
    assert error["param"].startswith("messages")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"logprobs": 3}, "logprobs", "got 3"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20, got 21"),
        ({"top_logprobs": 2}, "top_logprobs", "come with logprobs, which is false"),
    ],
)
def test_what_a_chat_may_not_tell(
    bounded: Client, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = bounded.ask("/v1/chat/completions", {**CHAT, **fields})
    assert refused(answer, 400, words)["param"] == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"\x00",
     b"[" * 1900, b'{"prompt": "x", "temperature": NaN}', b'{"prompt": "x", "min_p": 1e999}'],
)  # fmt: skip
def test_what_is_no_json_is_refused(bounded: Client, body: bytes) -> None:
    refused(bounded.ask("/v1/completions", body), 400, "")


def test_other_types_paths_methods_and_models(bounded: Client) -> None:
    headers = {"Content-Type": "text/plain"}
    refused(bounded.ask("/v1/completions", b"{}", headers=headers), 415, "application/json")
    for path in ("/", "/v1/embeddings", "/v1/../../etc/passwd", "//etc/passwd", "/v1/models/x"):
        refused(bounded.ask(path), 404, "Not Found")
    refused(bounded.ask("/v1/completions"), 405, "Method Not Allowed")
    refused(bounded.ask("/v1/models", method="DELETE"), 405, "Method Not Allowed")
    answer = bounded.ask("/v1/completions", {"prompt": "x", "model": "../tiny"})
    assert refused(answer, 404, "expected tiny")["code"] == "model_not_found"
    assert 'endpoint="none",status="404"' in bounded.send("/metrics").read().decode()


def test_fields_that_are_null_are_not_given(bounded: Client) -> None:
    fields = {"temperature": 0, "max_tokens": 3}
    assert bounded.text("x", stop=None, logprobs=None, **fields) == bounded.text("x", **fields)


def test_a_body_that_is_too_large(bounded: Client) -> None:
    for size in (2001, 10_000, 30_000):
        answer = bounded.ask("/v1/completions", {"prompt": "x" * size})
        assert refused(answer, 413, "more than 2000 bytes")["code"] == "body_too_large"
    bounded.text("it goes on", max_tokens=1)


def test_a_body_without_an_end(bounded: Client) -> None:
    """Its length is not declared, and the server stops reading."""
    with bounded.raw() as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        part = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        for _ in range(9):
            raw.sendall(part)
        assert raw.recv(12) == b"HTTP/1.1 413"


def test_a_declared_length_beyond_all_bounds(bounded: Client) -> None:
    with bounded.raw() as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        assert raw.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000]
)
def test_what_is_no_request(bounded: Client, head: bytes) -> None:
    with bounded.raw() as raw:
        raw.sendall(head)
        assert raw.recv(12) == b"HTTP/1.1 400"


def test_a_token_is_asked_for() -> None:
    with served(repeating(Repeat()), token=TOKEN) as client:
        for given in ("", TOKEN, f"Bearer {TOKEN}x", "Bearer ", f"bearer {TOKEN}", "Bearer \xe9"):
            for path, body in (("/v1/completions", {}), ("/v1/models", None), ("/metrics", None)):
                answer = client.ask(path, body, headers={"Authorization": given})
                error = refused(answer, 401, "token is missing or wrong")
                assert error["type"] == "authentication_error"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert client.ask("/v1/models", headers=headers)[0] == 200
        assert client.ask("/v1/completions", {"prompt": "x"}, headers=headers)[0] == 200
        assert client.ask("/health") == (200, {"status": "ok"})


def test_only_this_machines_names_are_local() -> None:
    with served(repeating(Repeat()), local=True) as client:
        for host in ("evil.example", "[", "[::1", "a:b:c"):
            refused(client.ask("/v1/models", headers={"Host": host}), 403, "host")
        for host in ("localhost", "127.0.0.1:80", "127.0.0.2", "[::1]:80"):
            status, models = client.ask("/v1/models", headers={"Host": host})
            assert status == 200
            assert [model["id"] for model in models["data"]] == ["tiny"]


class Gated(Repeat):
    """A model whose steps wait until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.gate.wait(PATIENCE)
        return super().__call__(*arguments)


def test_a_completion_that_asks_for_no_number_is_no_longer_than_may_be() -> None:
    for most, count in ((5, 5), (50, 16)):
        with served(repeating(Repeat()), limits=serving.Limits(new_tokens=most)) as client:
            assert client.text("x", temperature=0) == "a" * count


def test_a_full_queue_is_said_so() -> None:
    model = Gated()
    body = {"prompt": "x", "max_tokens": 2, "temperature": 0, "stream": True}
    with served(repeating(model, max_waiting=1)) as client:
        streams = []
        for running, waiting in ((1, 0), (1, 1)):  # the first step waits at the gate
            streams.append(client.send("/v1/completions", body))
            wait_until(lambda: client.engine.status[:2] == (waiting, running))  # noqa: B023
        response = client.send("/v1/completions", body)
        answer = response.status, json.loads(response.read())
        assert refused(answer, 429, "try again")["type"] == "rate_limit_error"
        assert response.headers["Retry-After"] == "1"
        model.gate.set()
        assert all(b"[DONE]" in stream.read() for stream in streams)


def test_what_a_tokenizer_lacks_is_refused() -> None:
    class Plain:
        stops = ()

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    with served(repeating(Repeat()), words=Plain()) as client:
        refused(client.ask("/v1/chat/completions", CHAT), 404, "no chat template")
        answer = client.ask("/v1/completions", {"prompt": "x", "logprobs": 0})
        assert refused(answer, 400, "the bytes of tokens")["param"] == "logprobs"
