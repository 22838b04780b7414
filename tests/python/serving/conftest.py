# SPDX-License-Identifier: MIT
"""A tiny model of bytes behind a real server, and clients of the standard library."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

import transformer_kernels as tfk

PATIENCE = 120.0  # seconds; only a hang takes them


class Letters:
    """Bytes are tokens, and the roles of a chat are letters."""

    stops = (0,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        return bytes([token])

    def render(self, messages: list[dict[str, str]]) -> str:
        return "".join(f"{message['role'][0]}:{message['content']}\n" for message in messages)


class Client:
    """A client of a server, and the server's engine."""

    def __init__(self, url: str, engine: tfk.decode.Engine) -> None:
        self.address = urlsplit(url).netloc
        self.engine = engine

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address, timeout=PATIENCE)

    def raw(self) -> socket.socket:
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE)

    def send(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = ""
    ) -> http.client.HTTPResponse:
        """The answer, which is not read yet; what is no bytes is sent as JSON. It may come, and the
        server may close, before the end of a body that the server does not want."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        usual = {} if data is None else {"Content-Type": "application/json"}
        method = method or ("GET" if data is None else "POST")
        connection.connect()
        with contextlib.suppress(ConnectionError):
            connection.request(method, path, data, {**usual, **(headers or {})})
        return connection.getresponse()

    def ask(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """The status and the content of an answer."""
        response = self.send(path, body, **options)
        return response.status, json.loads(response.read())

    def text(self, prompt: Any, **fields: Any) -> str:
        status, answer = self.ask("/v1/completions", {"prompt": prompt, **fields})
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, whose end is checked."""
        response = self.send(path, {**body, "stream": True})
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = response.read().decode().split("\n\n")  # every event is whole characters
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def metric(self, name: str) -> float:
        lines = self.send("/metrics").read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"tfk_{name}"))


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_idle(engine: tfk.decode.Engine) -> bool:
    """Whether nothing runs or waits, so that all pages can be given."""
    status = engine.status
    idle = status.waiting == status.running == 0
    return idle and status.available_pages == engine.cache.num_pages


@contextlib.contextmanager
def served(engine: tfk.decode.Engine, **options: Any) -> Iterator[Client]:
    """A server for an engine; at the end no page is held."""
    from transformer_kernels import serving

    names = ("patience", "read_patience", "send_buffer")
    threads = {name: options.pop(name) for name in names if name in options}
    threads.setdefault("patience", PATIENCE)
    app = serving.make_app(engine, options.pop("words", Letters()), "tiny", **options)
    with serving.in_thread(app, **threads) as url:
        yield Client(url, engine)
        wait_until(lambda: is_idle(engine))
    engine.cache.check()


def tiny_engine(dtype: torch.dtype = torch.float64, **options: Any) -> tfk.decode.Engine:
    """An engine whose tokens do not depend on the number of rows in a product: those of float64
    round too finely, and those of 16 bits are one call of C++ a step."""
    config = tfk.models.LlamaConfig(
        vocab_size=256, context=2048, dim=32, num_layers=2, num_heads=4, num_kv_heads=2,
        inner_dim=48,
    )  # fmt: skip
    model = tfk.models.Llama(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    options = {"num_pages": 256, "max_sequences": 8, "max_waiting": 256, **options}
    return tfk.engine(model, detokenize=Letters().decode, **options)


class Repeat:
    """A model that says one token for ever, in steps that a test can hold back."""

    def __init__(self, token: int = ord("a")) -> None:
        self.token, self.error = token, ""
        self.kind: type[BaseException] = RuntimeError
        self.steps = 0

    def __call__(self, batch: tfk.decode.Batch, cache: tfk.decode.PagedCache) -> torch.Tensor:
        self.steps += 1
        if self.error:
            raise self.kind(self.error)
        logits = torch.zeros(len(batch.outputs), 256)
        logits[:, self.token] = 1
        return logits


def repeating(model: Callable[..., torch.Tensor], **options: Any) -> tfk.decode.Engine:
    cache = tfk.decode.PagedCache(
        num_layers=1, num_pages=2048, num_heads=1, head_dim=1, max_sequences=4
    )
    options = {"detokenize": Letters().decode, "vocab_size": 256, **options}
    return tfk.decode.Engine(model, cache, **options)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Client]:
    with served(tiny_engine()) as client:
        yield client
