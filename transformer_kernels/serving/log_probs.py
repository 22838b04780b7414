# SPDX-License-Identifier: MIT
"""The log-probabilities of an answer's tokens, in the shapes of OpenAI's API."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ..decode import Piece


class Told(NamedTuple):
    """A token and its log-probability, which is None where it is no finite number."""

    name: str
    log_prob: float | None
    data: bytes


class LogProbs(ABC):
    """The log-probabilities of an answer's tokens.

    Args:
        bytes_of: gives the bytes of a token's text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._waiting: deque[Piece] = deque()
        self._written = 0  # characters

    def add(self, piece: Piece) -> None:
        """Adds a token, whose text may come with later ones."""
        self._waiting.append(piece)
        self._written += len(piece.text)

    def take(self) -> dict[str, Any]:
        """Takes out the tokens that begin in what was written: so a token goes with the piece of a
        stream that has its beginning, and one that was cut off with none."""
        begun = []
        while self._waiting and self._waiting[0].begin < self._written:
            begun.append(self._waiting.popleft())
        return self._shape(begun)

    @abstractmethod
    def _shape(self, pieces: list[Piece]) -> dict[str, Any]:
        """The part of an answer that tells of tokens."""

    def _chosen(self, piece: Piece) -> Told:
        assert piece.log_probs is not None
        return self._told(piece.token, piece.log_probs.token)

    def _likeliest(self, piece: Piece) -> list[Told]:
        assert piece.log_probs is not None
        return [self._told(*each) for each in piece.log_probs.likeliest]

    def _told(self, token: int, log_prob: float) -> Told:
        data = self._bytes_of(token)
        return Told(_name(data), log_prob if math.isfinite(log_prob) else None, data)


class CompletionLogProbs(LogProbs):
    def _shape(self, pieces: list[Piece]) -> dict[str, Any]:
        chosen = [self._chosen(piece) for piece in pieces]
        return {
            "tokens": [told.name for told in chosen],
            "token_logprobs": [told.log_prob for told in chosen],
            "top_logprobs": [
                {told.name: told.log_prob for told in (*self._likeliest(piece), own)}
                for piece, own in zip(pieces, chosen, strict=True)
            ],
            "text_offset": [piece.begin for piece in pieces],
        }


class ChatLogProbs(LogProbs):
    def _shape(self, pieces: list[Piece]) -> dict[str, Any]:
        content = [
            {
                **_entry(self._chosen(piece)),
                "top_logprobs": list(map(_entry, self._likeliest(piece))),
            }
            for piece in pieces
        ]
        return {"content": content}


def _entry(told: Told) -> dict[str, Any]:
    return {"token": told.name, "logprob": told.log_prob, "bytes": list(told.data)}


def _name(data: bytes) -> str:
    """The text; its bytes where they are no whole characters, so that no two have one name."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
