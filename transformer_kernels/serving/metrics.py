# SPDX-License-Identifier: MIT
"""The numbers that Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..decode import Engine

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_PREFIX = "tfk_"
_GAUGES = {
    "waiting": "requests that wait",
    "running": "requests that run",
    "available_pages": "pages of the cache that can be given",
}
_COUNTERS = {
    "rows": "rows that the model computed",
    "found": "tokens of prompts that were found in the cache",
    "given_up": "times that a request gave its pages up",
}


class Metrics:
    """Counters of one server, and the engine's own.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            f"{_PREFIX}requests", "answers by endpoint and status", ("endpoint", "status"), **own
        )
        self.prompt_tokens = Counter(f"{_PREFIX}prompt_tokens", "tokens of prompts", **own)
        self.new_tokens = Counter(f"{_PREFIX}new_tokens", "tokens of answers", **own)
        self.cancelled = Counter(f"{_PREFIX}cancelled", "requests whose client left", **own)
        own["buckets"] = _SECONDS
        self.first_token = Histogram(
            f"{_PREFIX}first_token_seconds", "from a request to its first token", **own
        )
        self.seconds = Histogram(
            f"{_PREFIX}request_seconds", "from a request to the end of its answer", **own
        )
        self.registry.register(self)

    def collect(self) -> Iterator[Any]:
        """The engine's state, when Prometheus asks."""
        status = self._engine.status._asdict()
        for name, meaning in _GAUGES.items():
            yield GaugeMetricFamily(f"{_PREFIX}{name}", meaning, value=status[name])
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"{_PREFIX}{name}", meaning, value=status[name])


class Counted:
    """Middleware that counts answers, by the endpoint's name and never by a path of the client's.

    Args:
        app: the application.
        metrics: where to.
    """

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.monotonic(), 0

        async def seen(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            name = getattr(scope.get("endpoint"), "__name__", "none")
            self._metrics.requests.labels(name, status).inc()
            self._metrics.seconds.observe(time.monotonic() - began)
