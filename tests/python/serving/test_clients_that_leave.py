# SPDX-License-Identifier: MIT
"""Clients that leave, read nothing or send nothing, and a model that fails: no page is lost, and
the server goes on."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import transformer_kernels as tfk
from transformer_kernels import serving

from .conftest import PATIENCE, Client, Repeat, is_idle, repeating, served, wait_until

pytest.importorskip("transformer_kernels.serving.app", reason="the extra serve brings it")

ENDLESS = {"prompt": "x", "max_tokens": 4000, "temperature": 0}


def head_and_body(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_pages(streams: bool) -> None:
    model = Slow()
    with served(repeating(model)) as client:
        for _ in range(3):
            raw = client.raw()
            raw.sendall(head_and_body({**ENDLESS, "stream": streams}))
            wait_until(lambda: client.engine.status.running == 1)
            if streams:
                assert raw.recv(15) == b"HTTP/1.1 200 OK"
            raw.close()
            wait_until(lambda: is_idle(client.engine))
        assert client.text("x", max_tokens=2, temperature=0) == "aa"
        wait_until(lambda: client.metric("cancelled_total") == 3)
    assert model.steps < 3 * ENDLESS["max_tokens"]  # type: ignore[operator]


class Slow(Repeat):
    """A model that nobody waits for to the end."""

    def __call__(self, *arguments: Any) -> Any:
        threading.Event().wait(0.002)
        return super().__call__(*arguments)


def test_a_client_that_stops_reading_is_cut_off() -> None:
    """Its answer does not fit between it and the server; another one is served meanwhile."""
    limits = serving.Limits(new_tokens=30_000)
    options = {"limits": limits, "read_patience": 0.2, "send_buffer": 4096}
    with served(repeating(Repeat()), **options) as client:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = client.address.split(":")
        raw.connect((host, int(port)))
        raw.sendall(head_and_body({**ENDLESS, "max_tokens": 30_000, "stream": True}))
        wait_until(lambda: client.engine.status.rows > 0)
        assert client.text("x", max_tokens=2, temperature=0) == "aa"
        wait_until(lambda: is_idle(client.engine))
        assert b"[DONE]" not in b"".join(iter(lambda: raw.recv(1 << 16), b""))
        raw.close()


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHo", head_and_body(ENDLESS)[:-1]]
)
def test_a_client_that_sends_half_a_request_is_cut_off(sent: bytes) -> None:
    limits = serving.Limits(patience=0.2)
    with served(repeating(Repeat()), limits=limits, patience=0.2) as client, client.raw() as raw:
        try:
            raw.sendall(sent)
            answer = raw.recv(1 << 16)
        except ConnectionError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
        wait_until(lambda: is_answered(client))


def test_a_body_that_never_ends_behind_its_answer_is_cut_off() -> None:
    """Each of its bytes ends the wait of a connection that is kept alive."""
    head = b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    with served(repeating(Repeat()), patience=0.2) as client, client.raw() as raw:
        parts = iter([head])

        def is_cut_off() -> bool:
            try:
                raw.sendall(next(parts, b"x"))
            except ConnectionError:
                return True
            return False

        wait_until(is_cut_off)


def is_answered(client: Client) -> bool:
    """Whether a request is answered whose client may be cut off, where the machine is slow."""
    try:
        return client.ask("/v1/completions", {**ENDLESS, "max_tokens": 2})[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def test_an_answer_that_takes_too_long_is_ended() -> None:
    limits = serving.Limits(seconds=0.1)
    with served(repeating(Slow()), limits=limits) as client:
        status, answer = client.ask("/v1/completions", ENDLESS)
        assert status == 503
        assert answer["error"]["code"] == "timeout"
        response = client.send("/v1/completions", {**ENDLESS, "stream": True})
        assert response.status == 200
        *_, last, end = response.read().decode().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        assert end == ""


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_model_that_fails_ends_its_requests_only(kind: type[BaseException]) -> None:
    model = Repeat()
    model.kind = kind
    with served(repeating(model)) as client:
        assert client.text("x", max_tokens=2, temperature=0) == "aa"
        model.error = "secret path"
        status, answer = client.ask("/v1/completions", ENDLESS)
        assert status == 500
        assert "secret" not in json.dumps(answer)
        wait_until(lambda: is_idle(client.engine))
        model.error = ""
        assert client.text("x", max_tokens=2, temperature=0) == "aa"
        assert client.ask("/health")[0] == 200


def test_a_failure_between_two_looks_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_kernels.serving.errors import RefusedError
    from transformer_kernels.serving.worker import Worker

    engine = repeating(Repeat())
    worker, take = Worker(engine), engine.take

    async def ask() -> None:
        stream = worker.open([1], tfk.decode.Parameters(), PATIENCE)

        def late(number: int) -> Any:
            stream.fail()  # as the worker's thread does
            return take(number)

        monkeypatch.setattr(engine, "take", late)
        with pytest.raises(RefusedError, match="the model failed"):
            await anext(aiter(stream))
        stream.close()

    asyncio.run(ask())


def test_clients_come_and_leave_at_random() -> None:
    def come_and_leave(number: int) -> None:
        chance = random.Random(number)
        raw = client.raw()
        count = chance.choice([1, 5, 200])
        raw.sendall(head_and_body({**ENDLESS, "max_tokens": count, "stream": number % 2 == 0}))
        if chance.random() < 0.5:
            raw.recv(chance.choice([1, 100, 10_000]))
        raw.close()

    with served(repeating(Repeat(), max_waiting=20)) as client:
        threads = [threading.Thread(target=come_and_leave, args=(n,)) for n in range(96)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: is_idle(client.engine))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_the_command_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """In a process of its own; a client is killed in the middle of its stream."""
    pytest.importorskip("gguf", reason="the package gguf writes the file")
    from ..generation import gguf_files
    from ..generation.conftest import hugging_face

    path = tmp_path / "tiny.gguf"
    gguf_files.write(path, hugging_face("llama2", max_position_embeddings=512), {})
    command = [sys.executable, "-m", "transformer_kernels", "serve", str(path), "--port", "0"]
    environment = {**os.environ, "TFK_TOKEN": "secret"}
    server = subprocess.Popen(
        [*command, "--device", "cpu"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        line = server.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("tiny is served at http://127.0.0.1:")
        client = Client(line.split()[4].rstrip(";"), None)  # type: ignore[arg-type]
        headers = {"Authorization": "Bearer secret"}
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
        status, answer = client.ask("/v1/chat/completions", chat, headers=headers)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] >= 1
        body = json.dumps({**ENDLESS, "max_tokens": 400, "stream": True})
        script = (
            "import http.client, sys\n"
            f"c = http.client.HTTPConnection({client.address!r})\n"
            f"c.request('POST', '/v1/completions', {body!r}, "
            f"{{**{headers!r}, 'Content-Type': 'application/json'}})\n"
            "print(c.getresponse().read(9), flush=True)\n"
            "sys.stdin.read()\n"
        )
        reader = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert "data: " in reader.stdout.readline()  # type: ignore[union-attr]
        reader.kill()
        reader.communicate()

        def running() -> bool:
            text = client.send("/metrics", headers=headers).read().decode()
            return "tfk_running 0.0" not in text

        wait_until(lambda: not running())
        assert client.ask("/v1/chat/completions", chat, headers=headers)[0] == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.communicate()
