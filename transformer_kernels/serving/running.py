# SPDX-License-Identifier: MIT
"""Runs an application on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_GRACE = 5  # seconds that answers have to end, where the server has to


def is_loopback(host: str) -> bool:
    """Whether an address is seen by this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(
    app: Any, host: str = "127.0.0.1", port: int = 8000, *, patience: float = 30.0,
    connections: int = 1000, ready: Callable[[str], Any] = print,
) -> None:  # fmt: skip
    """Serves until the process is told to end (SIGINT, SIGTERM).

    Args:
        app: as :func:`make_app` makes it.
        host: the address to listen at.
        port: 0 takes any that is free.
        patience: as in :class:`Limits`.
        connections: the most at a time; others are answered 503.
        ready: called with the server's URL.
    """
    with _bound(host, port) as listening:
        ready(_url(listening))
        _server(app, patience, connections).run(sockets=[listening])


@contextlib.contextmanager
def in_thread(
    app: Any, *, patience: float = 30.0, read_patience: float | None = None,
    connections: int = 1000, send_buffer: int | None = None,
) -> Iterator[str]:  # fmt: skip
    """Serves at a free local port from a thread while the block runs; gives the server's URL.

    Args:
        app: as :func:`make_app` makes it.
        patience, connections: as in :func:`run`.
        read_patience: seconds in which a client has to read; by default ``patience``.
        send_buffer: bytes that the system keeps for a client that does not read.
    """
    server = _server(app, patience, connections, read_patience)
    with _bound("127.0.0.1", 0) as listening:
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield _url(listening)  # connections wait until it accepts them
        finally:
            server.should_exit = True
            thread.join()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _server(
    app: Any, patience: float, connections: int, read_patience: float | None = None
) -> uvicorn.Server:
    class Protocol(PatientProtocol):
        pass

    Protocol.patience = patience
    Protocol.read_patience = patience if read_patience is None else read_patience
    return uvicorn.Server(
        uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="on", access_log=False, log_level="warning",
            limit_concurrency=connections, timeout_graceful_shutdown=_GRACE, server_header=False,
        )
    )  # fmt: skip


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which ends connections whose client sends no whole head, or no end of a
    body that was answered before it, or reads nothing of what is ready for it, for so many
    seconds."""

    patience = read_patience = 30.0
    _head: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def _wait_for_head(self) -> None:
        is_answered = self.conn.our_state is h11.DONE  # while the rest of the body is dropped
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._stop(self._head)
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(self.patience, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self.read_patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._head, self._reading)
        super().connection_lost(exc)

    @staticmethod
    def _stop(*timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()
