# SPDX-License-Identifier: MIT
"""The application: what is answered at which path."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..decode import Engine, Piece
from .answers import Answer, ChatAnswer
from .errors import RefusedError, refusal_of, respond
from .limits import Limits
from .log_probs import ChatLogProbs, CompletionLogProbs, LogProbs
from .metrics import Counted, Metrics
from .requests import Asked, ChatRequest, CompletionRequest, read
from .running import is_loopback
from .worker import Stream, Worker

Endpoint = Callable[[Request], Awaitable[Response]]
_GONE = 499  # nginx's status for a client that left; nobody reads it


class Words(Protocol):
    """A tokenizer; for chats with ``render(messages) -> str`` as well, and for log-probabilities
    with ``bytes_of(token) -> bytes``."""

    @property
    def stops(self) -> Sequence[int]:
        """The tokens that end an answer."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""


def make_app(
    engine: Engine, words: Words, name: str, *, limits: Limits | None = None,
    token: str | None = None, local: bool = False,
) -> Starlette:  # fmt: skip
    """Makes an ASGI application, which steps the engine while it runs.

    Args:
        engine: an engine with ``detokenize``; how many requests wait and run is its business.
        words: the model's tokenizer, such as ``tokenizer_of`` of
            :mod:`transformer_kernels.generation.tokenizer` gives.
        name: the model's name in requests and answers.
        limits: what is refused.
        token: every request but that for ``/health`` has to bring it.
        local: whether only names of this machine are taken as the server's, so that no page of the
            web that gave itself a local address can read answers.
    """
    limits = Limits() if limits is None else limits
    limits.check()
    service = Service(engine, words, name, limits, token, local)
    handlers: Any = {HTTPException: respond}  # of what no endpoint is there for
    return Starlette(
        routes=service.routes(),
        middleware=[Middleware(Counted, metrics=service.metrics)],
        exception_handlers=handlers,
        lifespan=service.lifespan,
    )


class Service:
    """The endpoints, and what they share."""

    def __init__(
        self, engine: Engine, words: Words, name: str, limits: Limits, token: str | None,
        local: bool,
    ) -> None:  # fmt: skip
        self.words, self.name, self.limits = words, name, limits
        self.worker = Worker(engine)
        self.metrics = Metrics(engine)
        self.created = int(time.time())
        cache = engine.cache
        room = min(cache.max_length, cache.num_pages * cache.page_size)
        self.context = min(room, limits.context or room)
        self._token, self._local = token, local

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self._guarded(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
            Route("/v1/models", self._guarded(self.models)),
            Route("/metrics", self._guarded(self.numbers)),
            Route("/health", self.health),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        try:
            yield
        finally:
            self.worker.stop()

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def guarded(request: Request) -> Response:
            try:
                self._check(request)
                return await endpoint(request)
            except Exception as error:
                return await respond(request, error)

        return guarded

    def _check(self, request: Request) -> None:
        """Refuses a request that may not ask at all."""
        if self._local and not is_loopback(_host(request)):
            raise RefusedError(403, "the host is none of this machine's names", "host")
        given = request.headers.get("authorization", "")
        wanted = f"Bearer {self._token}"
        if self._token is not None and not hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), wanted.encode()
        ):
            headers = {"WWW-Authenticate": "Bearer"}
            message = "the bearer token is missing or wrong"
            raise RefusedError(401, message, code="invalid_api_key", headers=headers)

    # ---- endpoints -------------------------------------------------------------------------------

    async def health(self, _: Request) -> Response:
        status = "ok" if self.worker.is_alive else "the engine's thread has ended"
        return JSONResponse({"status": status}, 200 if self.worker.is_alive else 503)

    async def numbers(self, _: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def models(self, _: Request) -> Response:
        own = {
            "id": self.name, "object": "model", "created": self.created,
            "owned_by": "transformer-kernels",
        }  # fmt: skip
        return JSONResponse({"object": "list", "data": [own]})

    async def completions(self, request: Request) -> Response:
        asked = await read(request, CompletionRequest, self.limits)
        prompt = asked.prompt
        tokens = await asyncio.to_thread(self.words.encode, prompt) if isinstance(prompt, str) \
            else prompt  # fmt: skip
        log_probs = self._log_probs(asked, CompletionLogProbs)
        answer = Answer(self.name, len(tokens), log_probs)
        return await self._answer(request, asked, tokens, answer)

    async def chat(self, request: Request) -> Response:
        asked = await read(request, ChatRequest, self.limits)
        tokens = await asyncio.to_thread(self._rendered, asked)
        answer = ChatAnswer(self.name, len(tokens), self._log_probs(asked, ChatLogProbs))
        return await self._answer(request, asked, tokens, answer)

    def _rendered(self, asked: ChatRequest) -> list[int]:
        render = getattr(self.words, "render", None)
        if render is None:
            raise RefusedError(404, f"the model {self.name} has no chat template")
        return self.words.encode(render(asked.plain))

    def _log_probs(self, asked: Asked, kind: type[LogProbs]) -> LogProbs | None:
        if asked.likeliest is None:
            return None
        bytes_of = getattr(self.words, "bytes_of", None)
        if bytes_of is None:
            message = f"logprobs: the model {self.name} does not know the bytes of tokens"
            raise RefusedError(400, message, "logprobs")
        return kind(bytes_of)

    # ---- answers ---------------------------------------------------------------------------------

    async def _answer(
        self, request: Request, asked: Asked, tokens: list[int], answer: Answer
    ) -> Response:
        began = time.monotonic()
        if asked.model not in (None, self.name):
            message = f"no such model, expected {self.name}"
            raise RefusedError(404, message, "model", "model_not_found")
        self._check_bias(asked)
        parameters = asked.parameters(self._count(asked, len(tokens)), tuple(self.words.stops))
        stream = self.worker.open(tokens, parameters, self.limits.seconds)
        self.metrics.prompt_tokens.inc(len(tokens))
        pieces = self._counted(stream, answer, began)
        if asked.stream:
            return Events(self._events(pieces, answer, asked), lambda: self._close(stream))
        try:
            return await self._unless_gone(request, self._whole(pieces, answer))
        finally:
            self._close(stream)

    def _check_bias(self, asked: Asked) -> None:
        size, last = self.worker.engine.vocab_size, max(asked.logit_bias, default=-1)
        if size is not None and last >= size:
            message = f"logit_bias has the token {last}, expected less than {size}"
            raise RefusedError(400, message, "logit_bias")

    def _close(self, stream: Stream) -> None:
        if stream.close():
            self.metrics.cancelled.inc()

    def _count(self, asked: Asked, length: int) -> int:
        """The number of new tokens that are asked for."""
        most, room = self.limits.new_tokens, self.context - length + 1  # the last is never stored
        count = asked.asked_tokens
        if count is None:
            usual = asked.usual_tokens
            count = min(most, max(1, room) if usual is None else usual)
        if count > most:
            message = f"max_tokens is {count}, expected at most {most}"
            raise RefusedError(400, message, "max_tokens")
        if count > room:
            raise RefusedError(
                400, f"the prompt has {length} tokens and the answer may have {count}, which is "
                f"more than the context of {self.context}", code="context_length_exceeded",
            )  # fmt: skip
        return count

    async def _counted(self, stream: Stream, answer: Answer, began: float) -> AsyncIterator[Piece]:
        async for piece in stream:
            if not answer.new_tokens:
                self.metrics.first_token.observe(time.monotonic() - began)
            answer.add(piece)
            self.metrics.new_tokens.inc()
            yield piece

    async def _whole(self, pieces: AsyncIterator[Piece], answer: Answer) -> Response:
        text, reason = "", ""
        async for piece in pieces:
            text, reason = text + piece.text, piece.reason or ""
        return JSONResponse(answer.whole(text, reason))

    async def _unless_gone(self, request: Request, work: Awaitable[Response]) -> Response:
        """The answer, or nothing as soon as its client left."""
        answer = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_disconnect(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            return Response(status_code=_GONE)
        finally:
            answer.cancel()
            gone.cancel()

    async def _events(
        self, pieces: AsyncIterator[Piece], answer: Answer, asked: Asked
    ) -> AsyncIterator[str]:
        try:
            for part in answer.first():
                yield _event(part)
            async for piece in pieces:
                if piece.text or piece.reason is not None:
                    yield _event(answer.piece(piece.text, piece.reason))
            if asked.stream_options.include_usage:
                yield _event(answer.end())
            yield "data: [DONE]\n\n"
        except Exception as error:  # the status was sent before it was known
            yield _event(refusal_of(error).body)


class Events(StreamingResponse):
    """Server-sent events.

    Args:
        events: their text.
        close: called at the end, whether the client read all or left.
    """

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _host(request: Request) -> str:
    """The name that the client calls the server by; empty where it is none. Starlette's URL has the
    server's own name there."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
