# SPDX-License-Identifier: MIT
"""Runs an engine in a thread, beside the event loop of a server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence

from .._errors import ArgumentValueError
from ..decode import Engine, Parameters, Piece
from .errors import RefusedError

log = logging.getLogger(__name__)


class Stream:
    """The pieces of one request, for one task of the event loop. It is closed in any case.

    Args:
        worker: the worker.
        number: the engine's number of the request.
        seconds: after so many it is refused.
    """

    def __init__(self, worker: Worker, number: int, seconds: float) -> None:
        self._worker, self._number = worker, number
        self._news = asyncio.Event()
        self._error: RefusedError | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Yields the pieces as they come; the last has a reason."""
        while True:
            self._news.clear()  # first: what comes from here on is waited for no more
            if self._error is not None:
                raise self._error
            for piece in self._take():
                yield piece
                if piece.reason is not None:
                    return
            await self._news.wait()

    def _take(self) -> list[Piece]:
        try:
            return self._worker.engine.take(self._number)
        except ArgumentValueError:  # it may just have failed, in the worker's thread
            if self._error is None:
                raise
            raise self._error from None

    def _expire(self) -> None:
        self._error = RefusedError(503, "the answer took too long", code="timeout")
        self._news.set()

    def tell(self) -> None:
        self._news.set()

    def fail(self) -> None:
        """Ends the request because the model cannot go on with it; from the worker's thread."""
        self._error = RefusedError(500, "the model failed", code="internal_error")
        self._worker.engine.cancel(self._number)

    def close(self) -> bool:
        """Ends the request, if it has not ended: its pages are free after the step that runs.
        Returns whether nobody waited for its end."""
        self._timer.cancel()
        self._worker.streams.pop(self._number, None)
        return self._worker.engine.cancel(self._number) is not None and self._error is None


class Worker:
    """Steps of an engine, as long as there are requests.

    Args:
        engine: the engine; nothing else steps it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.streams: dict[int, Stream] = {}  # changed by the event loop's thread alone
        self._wanted = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts a thread, which wakes the tasks of the loop that runs."""
        self._loop, self._is_over = asyncio.get_running_loop(), False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after its step."""
        self._is_over = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def open(self, prompt: Sequence[int], parameters: Parameters, seconds: float) -> Stream:
        """Submits a request, as :meth:`transformer_kernels.decode.Engine.submit` does."""
        number = self.engine.submit(prompt, parameters)
        stream = self.streams[number] = Stream(self, number, seconds)
        self._wanted.set()
        return stream

    def _run(self) -> None:
        while not self._is_over:
            try:
                has_run = self.engine.step()
            except BaseException:  # the same step would fail again, and nobody else steps
                log.exception("a step of the model failed; its requests end")
                has_run = True
                for stream in list(self.streams.values()):
                    stream.fail()
            self._loop.call_soon_threadsafe(self._tell)
            if not has_run:
                self._wanted.wait()
                self._wanted.clear()

    def _tell(self) -> None:
        for stream in self.streams.values():
            stream.tell()
