# SPDX-License-Identifier: MIT
"""The bounds behind which a server refuses a request."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Bounds of a request; how many wait and run is the engine's.

    Args:
        body_bytes: the largest body.
        new_tokens: the most tokens of an answer.
        context: the most tokens of a prompt and its answer; by default what the cache allows.
        seconds: from a request's arrival to its last token.
        patience: seconds in which a client has to send a request's head, then its body, and to read
            what is ready for it.
    """

    body_bytes: int = 1 << 20
    new_tokens: int = 4096
    context: int | None = None
    seconds: float = 600.0
    patience: float = 30.0

    def check(self) -> None:
        """Raises ValueError where a bound is not above 0."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"{field.name} is {value}, expected more than 0")
