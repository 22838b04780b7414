# SPDX-License-Identifier: MIT
"""The server of examples/cpp/gpt2: its answers are those of `generate` and of transformers, bad
requests are refused, and neither slow clients nor those that leave hold anything."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from ...serving.conftest import PATIENCE, Client, wait_until
from .conftest import Program, small_model

NEW_TOKENS = 12
PROMPT = "The kernels "
ENDLESS = {"prompt": "x", "max_tokens": 60_000, "temperature": 0}
PAGE = 16  # tokens


@contextlib.contextmanager
def served(model: Path, *flags: Any, token: str | None = None) -> Iterator[Server]:
    """A server at a free port, which ends without an error."""
    environment = {name: value for name, value in os.environ.items() if name != "TFK_TOKEN"}
    environment["TFK_NUM_THREADS"] = "1"  # small models gain nothing by threads
    if token is not None:
        environment["TFK_TOKEN"] = token
    command = [os.environ["TFK_GPT2"], "serve", "--model", str(model), "--port", "0"]
    with subprocess.Popen(
        [*command, *map(str, flags)], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()  # type: ignore[union-attr]
            assert line.startswith(f"{model.name} is served at http://127.0.0.1:"), line
            yield Server(line.split()[4].rstrip(";"), process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


class Server(Client):
    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        super().__init__(url, None)  # type: ignore[arg-type]
        self.process = process

    def is_idle(self, tokens: int) -> bool:
        """Whether nothing runs or waits, and pages for so many tokens are free: all of them. A
        client may be cut off, where the machine is slow and the server impatient."""
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            busy = self.metric("running") + self.metric("waiting")
            return busy == 0 and self.metric("available_pages") == tokens // PAGE
        return False


@pytest.fixture(scope="module")
def small(gpt2: Program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GPT2LMHeadModel]:
    """ASCII: each token is printed as itself."""
    path = tmp_path_factory.mktemp("models") / "small"
    model = small_model(layers=1, vocabulary=128)
    model.save_pretrained(path)
    return path, model.double()


@pytest.fixture(scope="module")
def endless(gpt2: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers are so long that nobody waits for their end."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text("some text of no matter")
    gpt2(
        "train", "--data", folder / "text.txt", "--out", folder / "endless", "--steps", 1,
        "--warmup", 0, "--batch", 1, "--length", 8, "--layers", 1, "--channels", 16, "--heads", 1,
        "--positions", 65_536, "--vocabulary", 128,
    )  # fmt: skip
    return folder / "endless"


@pytest.fixture(scope="module")
def server(small: tuple[Path, GPT2LMHeadModel]) -> Iterator[Server]:
    flags = ("--max-tokens", 20, "--max-body", 2000, "--sequences", 8, "--patience", PATIENCE)
    with served(small[0], *flags) as server:
        yield server
        wait_until(lambda: server.is_idle(8 * 32))


@pytest.fixture(scope="module")
def unending(endless: Path) -> Iterator[Server]:
    flags = ("--max-tokens", 60_000, "--context", 65_536, "--cache-tokens", 65_536)
    with served(endless, *flags, "--sequences", 1, "--queue", 1, "--patience", PATIENCE) as server:
        yield server
        wait_until(lambda: server.is_idle(65_536))


@pytest.mark.parametrize(
    "flags",
    [
        ("--temperature", 0),
        ("--seed", 7, "--top-k", 20),
        ("--temperature", 0, "--presence-penalty", 0.5, "--frequency-penalty", 1.5),
        ("--seed", 7, "--top-p", 0.9, "--min-p", 0.02, "--repetition-penalty", 1.2),
    ],
    ids=str,
)
def test_an_answer_is_what_generate_writes(
    gpt2: Program, small: tuple[Path, GPT2LMHeadModel], server: Server, flags: tuple[Any, ...]
) -> None:
    arguments = ("--model", small[0], "--prompt", PROMPT, "--tokens", NEW_TOKENS, *flags)
    wanted = gpt2("generate", *arguments).stdout.decode()
    names = [flag.removeprefix("--").replace("-", "_") for flag in flags[::2]]
    fields = dict(zip(names, flags[1::2], strict=True))
    for prompt in (PROMPT, list(PROMPT.encode())):
        text = server.text(prompt, max_tokens=NEW_TOKENS, **fields)
        assert PROMPT + text + "\n" == wanted


def test_generate_refuses_what_requests_may_not_have(gpt2: Program) -> None:
    command = [os.environ["TFK_GPT2"], "generate", "--model", "none", "--presence-penalty", "2.5"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "--presence-penalty: expected a number from -2 to 2, got 2.5" in result.stderr


def test_a_stream_is_the_same_text_in_pieces(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0}
    status, answer = server.ask("/v1/completions", body)
    assert status == 200
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "small"
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": len(PROMPT), "completion_tokens": NEW_TOKENS,
        "total_tokens": len(PROMPT) + NEW_TOKENS,
    }  # fmt: skip
    *events, usage = server.events(
        "/v1/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (
        len(events) - 1
    )
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == answer["usage"]


def test_a_text_ends_before_a_stop_string(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0}
    text = server.text(PROMPT, max_tokens=NEW_TOKENS, temperature=0)
    stop = text[5:8]
    body["stop"] = [stop + "\x7f\x7f", stop]
    wanted = text[: text.index(stop)]
    _, answer = server.ask("/v1/completions", body)
    assert answer["choices"][0] == {
        "index": 0, "text": wanted, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    events = server.events("/v1/completions", body)
    assert "".join(event["choices"][0]["text"] for event in events) == wanted


def test_many_clients_at_once_get_the_likeliest_tokens(
    small: tuple[Path, GPT2LMHeadModel], server: Server
) -> None:
    """More than run at a time, of several lengths."""
    rows: list[list[int]] = []
    errors: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            for turn in range(3):
                prompt = [(number * 7 + turn + i) % 128 for i in range(1 + number % 12)]
                body = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
                if number % 2:
                    events = server.events("/v1/completions", body)
                    text = "".join(event["choices"][0]["text"] for event in events)
                else:
                    text = server.text(**body)
                rows.append([len(prompt), *prompt, *text.encode()])
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(rows) == 96
    model = small[1]
    for length in sorted({row[0] for row in rows}):
        tokens = torch.tensor([row[1:] for row in rows if row[0] == length])
        assert tokens.shape[1] == length + 20
        logits = model(tokens[:, :-1]).logits[:, length - 1 :]
        chosen = logits.gather(2, tokens[:, length:, None])[..., 0]
        # Two tokens may be as likely as each other, up to rounding.
        assert (logits.max(2).values - chosen).max() < 1e-3 * logits.std()
    wait_until(lambda: server.is_idle(8 * 32))


LETTERS = "aeiou"


def changed(logits: Tensor, prompt: list[int], text: list[int], fields: dict[str, Any]) -> Tensor:
    """The next token's logits: presence and frequency are OpenAI's formula, repetition is Hugging
    Face's."""
    logits = logits.clone()
    for token, by in fields.get("logit_bias", {}).items():
        logits[int(token)] += by
    for token in {*prompt, *text}:
        penalty = fields.get("repetition_penalty", 1)
        logits[token] *= penalty if logits[token] < 0 else 1 / penalty
    for token, times in Counter(text).items():
        logits[token] -= fields.get("frequency_penalty", 0) * times
        logits[token] -= fields.get("presence_penalty", 0)
    return logits


def test_penalties_and_biases_change_logits_as_their_formulas_say(
    small: tuple[Path, GPT2LMHeadModel], server: Server
) -> None:
    """A text of few letters repeats them. Requests with penalties and without share steps."""
    usual = {"logit_bias": {str(ord(letter)): 20 for letter in LETTERS}, "temperature": 0}
    choices = [
        {"presence_penalty": random.choice((-1, 1)) * random.uniform(1, 2)},
        {"frequency_penalty": random.uniform(0, 2)},
        {"repetition_penalty": random.uniform(0.9, 1.1)},
    ]
    asked = [{**usual, **choice} for choice in (*choices, choices[0] | choices[1] | choices[2], {})]
    asked.append({"temperature": 0})
    prompts = ["".join(random.choices(LETTERS, k=1 + n)) for n in range(len(asked))]

    def ask(prompt: str, fields: dict[str, Any]) -> str:
        return server.text(prompt, max_tokens=20, **fields)

    with ThreadPoolExecutor(len(asked)) as pool:
        texts = list(pool.map(ask, prompts, asked))
    for given, answer, fields in zip(prompts, texts, asked, strict=True):
        prompt, text = list(given.encode()), list(answer.encode())
        assert len(text) == 20
        rows = small[1](torch.tensor([prompt + text])).logits[0, len(prompt) - 1 :]
        for place, token in enumerate(text):
            logits = changed(rows[place], prompt, text[:place], fields)
            # Two tokens may be as likely as each other, up to rounding.
            assert logits.max() - logits[token] < 1e-3 * rows.std()


def test_log_probabilities_are_those_of_the_model(
    small: tuple[Path, GPT2LMHeadModel], server: Server
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "seed": random.getrandbits(62), "logprobs": 3}
    choice = server.ask("/v1/completions", body)[1]["choices"][0]
    text, told = choice["text"], choice["logprobs"]
    assert told["tokens"] == list(text)
    assert told["text_offset"] == list(range(20))
    logits = small[1](torch.tensor([list((PROMPT + text).encode())])).logits[0]
    wanted = logits[len(PROMPT) - 1 : -1].log_softmax(1)
    for row, token, found, likeliest in zip(
        wanted, text, told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert likeliest[token] == found
        assert len(likeliest) == 3 or (len(likeliest) == 4 and found == min(likeliest.values()))
        for name, number in likeliest.items():
            assert abs(number - row[ord(name)]) < 1e-3
        assert abs(sorted(likeliest.values())[-3] - row.sort().values[-3]) < 1e-3
    bodies = [body, {**body, "stop": text[5:8], "logprobs": 0}]
    for asked in bodies:
        whole = server.ask("/v1/completions", asked)[1]["choices"][0]
        events = [event["choices"][0] for event in server.events("/v1/completions", asked)]
        for name, numbers in whole["logprobs"].items():
            assert numbers == [one for event in events for one in event["logprobs"][name]]
        assert whole["logprobs"]["tokens"] == list(whole["text"])
    assert [list(each) for each in whole["logprobs"]["top_logprobs"]] == [
        [letter] for letter in whole["text"]
    ]


def test_a_token_that_is_no_whole_character_is_named_by_its_bytes(
    gpt2: Program, tmp_path: Path
) -> None:
    small_model(layers=1, vocabulary=256).save_pretrained(tmp_path / "bytes")
    with served(tmp_path / "bytes") as server:
        body = {"prompt": "x", "max_tokens": 2, "logit_bias": {"169": 100}, "logprobs": 0}
        choice = server.ask("/v1/completions", body)[1]["choices"][0]
    assert choice["text"] == "\ufffd\ufffd"
    assert choice["logprobs"]["tokens"] == ["bytes:\\xa9"] * 2
    assert choice["logprobs"]["text_offset"] == [0, 1]


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
        ({"prompt": 5}, "prompt", "valid string"),
        ({"prompt": [1, -1]}, "prompt", "greater than or equal to 0"),
        ({"prompt": [1, 2**32]}, "prompt", "greater than or equal to 0"),
        ({"prompt": "x", "n": 2}, "n", "Input should be 1"),
        ({"prompt": "x", "temperature": -1}, "temperature", "from 0 to 2"),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "number"),
        ({"prompt": "x", "top_p": 0}, "top_p", "greater than 0"),
        ({"prompt": "x", "top_k": 1.5}, "top_k", "whole number"),
        ({"prompt": "x", "min_p": 1.5}, "min_p", "from 0 to 1"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"prompt": "x", "max_tokens": 21}, "max_tokens", "expected at most 20"),
        ({"prompt": "x", "max_tokens": 10**30}, "max_tokens", ""),
        ({"prompt": "x", "seed": 2**63}, "seed", "64 bits"),
        ({"prompt": "x", "stop": [""]}, "stop", "at most 16"),
        ({"prompt": "x", "stop": ["x"] * 17}, "stop", "at most 16"),
        ({"prompt": "x", "stream": 1}, "stream", "bool"),
        ({"prompt": "x", "stream_options": {"x": 1}}, "stream_options.x", "not permitted"),
        ({"prompt": "x", "presence_penalty": 2.5}, "presence_penalty", "from -2 to 2, got 2.5"),
        ({"prompt": "x", "frequency_penalty": "2"}, "frequency_penalty", "2, got string"),
        ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty", "from 0.01 to 100, got 0"),
        ({"prompt": "x", "logit_bias": [1]}, "logit_bias", "an object of tokens"),
        ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100, got 101"),
        ({"prompt": "x", "logit_bias": {"1": True}}, "logit_bias", "got true"),
        ({"prompt": "x", "logit_bias": {"01": 1}}, "logit_bias", "numbers of tokens as names"),
        ({"prompt": "x", "logit_bias": {"-1": 1}}, "logit_bias", "numbers of tokens as names"),
        ({"prompt": "x", "logit_bias": {"128": 1}}, "logit_bias", "128, expected less than 128"),
        ({"prompt": "x", "logprobs": 6}, "logprobs", "from 0 to 5, got 6"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "whole number"),
        ({"prompt": "x", "best_of": 3}, "best_of", "Extra inputs are not permitted"),
        ({"prompt": ""}, None, "prompt_tokens is empty"),
        ({"prompt": [128]}, None, "token 128, expected less than 128"),
        ({"prompt": "x" * 20}, None, "more than the context of 32"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    server: Server, fields: dict[str, Any], param: str | None, words: str
) -> None:
    error = refused(server.ask("/v1/completions", fields), 400, words)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"\x00",
     b"[" * 1900, b'{"prompt": "x", "temperature": NaN}', b'{"prompt": "x", "min_p": 1e999}'],
)  # fmt: skip
def test_what_is_no_json_is_refused(server: Server, body: bytes) -> None:
    refused(server.ask("/v1/completions", body), 400, "")


def test_other_types_paths_methods_and_models(server: Server) -> None:
    headers = {"Content-Type": "text/plain"}
    refused(server.ask("/v1/completions", b"{}", headers=headers), 415, "application/json")
    for path in ("/", "/v1/embeddings", "/v1/../../etc/passwd", "//etc/passwd", "/v1/models/x"):
        refused(server.ask(path), 404, "Not Found")
        refused(server.ask(path, b"{}"), 404, "Not Found")
    refused(server.ask("/v1/completions"), 405, "Method Not Allowed")
    refused(server.ask("/v1/models", method="DELETE"), 405, "Method Not Allowed")
    answer = server.ask("/v1/completions", {"prompt": "x", "model": "../small"})
    assert refused(answer, 404, "expected small")["code"] == "model_not_found"
    assert server.text("x", stop=None, logprobs=None, max_tokens=1)
    assert server.ask("/health") == (200, {"status": "ok"})
    assert [model["id"] for model in server.ask("/v1/models")[1]["data"]] == ["small"]
    assert 'endpoint="none",status="404"' in server.send("/metrics").read().decode()


def test_a_body_that_is_too_large(server: Server) -> None:
    for size in (2001, 10_000, 3_000_000):
        answer = server.ask("/v1/completions", {"prompt": "x" * size})
        assert refused(answer, 413, "more than 2000 bytes")["code"] == "body_too_large"
    server.text("it goes on", max_tokens=1)


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"800\r\n" + b"x" * 2048 + b"\r\n") * 9,
         413),
        (HEAD + b"Content-Length: 999999999999\r\n\r\n{", 413),
        (HEAD + b"\r\n", 400),  # without a body
        (b"POST /none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000, 400),
        (b"GET /" + b"y" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /health HTTP/1.1\r\nRange: bytes=" + b"0-0," * 2000 + b"0-0\r\n\r\n", 200),
    ],
)  # fmt: skip
def test_what_is_no_request(server: Server, sent: bytes, status: int) -> None:
    with server.raw() as raw:
        raw.sendall(sent)
        assert raw.recv(12) == f"HTTP/1.1 {status}".encode()


def test_a_token_is_asked_for(small: tuple[Path, GPT2LMHeadModel], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the file\n")
    for flags, token in (((), "correct horse"), (("--token-file", tmp_path / "token"), "")):
        wanted = token or "of the file"
        with served(small[0], "--max-tokens", 3, *flags, token=token) as client:
            for given in ("", wanted, f"Bearer {wanted}x", "Bearer ", f"bearer {wanted}"):
                for path, body in (("/v1/completions", {}), ("/v1/models", None)):
                    answer = client.ask(path, body, headers={"Authorization": given})
                    error = refused(answer, 401, "token is missing or wrong")
                    assert error["type"] == "authentication_error"
            headers = {"Authorization": f"Bearer {wanted}"}
            assert client.ask("/v1/models", headers=headers)[0] == 200
            status, answer = client.ask("/v1/completions", {"prompt": "x"}, headers=headers)
            assert status == 200
            assert answer["usage"]["completion_tokens"] == 3  # as many as there may be
            assert client.ask("/health") == (200, {"status": "ok"})


def test_an_address_that_others_see_needs_a_token(
    gpt2: Program, small: tuple[Path, GPT2LMHeadModel]
) -> None:
    result = gpt2("serve", "--model", small[0], "--host", "0.0.0.0", "--port", 0, fails=True)
    assert b"give a token" in result.stderr


def test_only_this_machines_names_are_local(server: Server) -> None:
    for host in ("evil.example", "[", "[::1", "a:b:c", ""):
        refused(server.ask("/v1/models", headers={"Host": host}), 403, "host")
    for host in ("localhost", "127.0.0.1:80", "127.0.0.2", "[::1]:80"):
        assert server.ask("/v1/models", headers={"Host": host})[0] == 200


def head_and_body(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def test_a_full_queue_is_said_so(unending: Server) -> None:
    streams = []
    for name in ("running", "waiting"):
        streams.append(unending.raw())
        streams[-1].sendall(head_and_body({**ENDLESS, "stream": True}))
        wait_until(lambda: unending.metric(name) == 1)  # noqa: B023
    response = unending.send("/v1/completions", ENDLESS)
    answer = response.status, json.loads(response.read())
    assert refused(answer, 429, "try again")["type"] == "rate_limit_error"
    assert response.headers["Retry-After"] == "1"
    for stream in streams:
        stream.close()
    wait_until(lambda: unending.is_idle(65_536))


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_pages(unending: Server, streams: bool) -> None:
    before = unending.metric("cancelled_total")
    with unending.raw() as raw:
        raw.sendall(head_and_body({**ENDLESS, "stream": streams}))
        wait_until(lambda: unending.metric("running") == 1)
        if streams:
            assert raw.recv(15) == b"HTTP/1.1 200 OK"
    wait_until(lambda: unending.is_idle(65_536))
    assert unending.text("x", max_tokens=2, temperature=0)
    wait_until(lambda: unending.metric("cancelled_total") == before + 1)


@pytest.fixture(scope="module")
def impatient(endless: Path) -> Iterator[Server]:
    flags = ("--max-tokens", 60_000, "--context", 65_536, "--cache-tokens", 65_536)
    with served(endless, *flags, "--patience", 1.0) as server:
        yield server
        wait_until(lambda: server.is_idle(65_536))


def test_a_client_that_stops_reading_is_cut_off(impatient: Server) -> None:
    """Its answer does not fit between it and the server."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(PATIENCE)
        host, port = impatient.address.split(":")
        raw.connect((host, int(port)))
        raw.sendall(head_and_body({**ENDLESS, "stream": True}))
        wait_until(lambda: count(impatient, "rows_total") > 0)
        wait_until(lambda: impatient.is_idle(65_536))
        assert b"[DONE]" not in b"".join(iter(lambda: raw.recv(1 << 16), b""))


def count(server: Server, name: str) -> float:
    """A metric of a server that may cut its client off, where the machine is slow."""
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        return server.metric(name)
    return 0.0


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (b"", b""),
        (b"POST /v1/completions HTTP/1.1\r\nHo", b"HTTP/1.1 400"),
        (head_and_body(ENDLESS)[:-1], b"HTTP/1.1 408"),
    ],
)
def test_a_client_that_sends_half_a_request_is_cut_off(
    impatient: Server, sent: bytes, wanted: bytes
) -> None:
    with impatient.raw() as raw:
        try:
            raw.sendall(sent)
            answer = raw.recv(1 << 16)
        except ConnectionError:
            answer = b""
        assert answer == b"" or answer.startswith(wanted)


def test_an_answer_that_takes_too_long_is_ended(endless: Path) -> None:
    flags = ("--max-tokens", 60_000, "--context", 65_536, "--cache-tokens", 65_536)
    with served(endless, *flags, "--patience", PATIENCE, "--timeout", 0.2) as server:
        status, answer = server.ask("/v1/completions", ENDLESS)
        assert status == 503
        assert answer["error"]["code"] == "timeout"
        response = server.send("/v1/completions", {**ENDLESS, "stream": True})
        *_, last, end = response.read().decode().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        assert end == ""
        wait_until(lambda: server.is_idle(65_536))


def test_told_to_end_it_lets_answers_end_and_no_idle_connection_holds_it(endless: Path) -> None:
    with served(endless, "--max-tokens", 300, "--sequences", 2, "--connections", 2) as server:
        idle = server.raw()
        response = server.send("/v1/completions", {**ENDLESS, "max_tokens": 300, "stream": True})
        with server.raw() as third:
            assert third.recv(12) == b"HTTP/1.1 503"
        assert response.read(5) == b"data:"
        server.process.send_signal(signal.SIGTERM)
        assert response.read().endswith(b"data: [DONE]\n\n")
        assert idle.recv(1) == b""
        idle.close()
