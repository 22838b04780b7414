# SPDX-License-Identifier: MIT
"""The answers of OpenAI's API, whole and in pieces."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from ..decode import Piece
from .log_probs import LogProbs


@dataclass
class Answer:
    """An answer on its way.

    Args:
        model: the name of the model.
        prompt_tokens: the number of the prompt's tokens.
        log_probs: those of its tokens, where they are asked for.
    """

    model: str
    prompt_tokens: int
    log_probs: LogProbs | None = None
    new_tokens: int = 0
    identity: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    prefix = "cmpl"
    whole_object = piece_object = "text_completion"

    def add(self, piece: Piece) -> None:
        """Counts a token, and keeps its log-probabilities for the part that has its text."""
        self.new_tokens += 1
        if self.log_probs is not None:
            self.log_probs.add(piece)

    def first(self) -> list[dict[str, Any]]:
        """The parts that a stream begins with, before there is a token."""
        return []

    def piece(self, text: str, reason: str | None) -> dict[str, Any]:
        """A part of a stream; the last has a reason."""
        return self._wrap(self.piece_object, [self._choice(self._part(text), reason)])

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        """The whole answer."""
        choice = self._choice(self._content(text), reason)
        return {**self._wrap(self.whole_object, [choice]), "usage": self.usage}

    def end(self) -> dict[str, Any]:
        """A part of a stream that only says what was used."""
        return {**self._wrap(self.piece_object, []), "usage": self.usage}

    @property
    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.new_tokens,
            "total_tokens": self.prompt_tokens + self.new_tokens,
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _choice(self, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        told = None if self.log_probs is None else self.log_probs.take()
        return {"index": 0, **content, "logprobs": told, "finish_reason": reason}

    def _wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.identity}", "object": kind, "created": self.created,
            "model": self.model, "choices": choices,
        }  # fmt: skip


class ChatAnswer(Answer):
    prefix = "chatcmpl"
    whole_object, piece_object = "chat.completion", "chat.completion.chunk"

    def first(self) -> list[dict[str, Any]]:
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._wrap(self.piece_object, [self._choice(delta, None)])]

    def _part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}
