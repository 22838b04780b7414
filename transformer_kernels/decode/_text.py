# SPDX-License-Identifier: MIT
"""The text of tokens that come one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Detokenize = Callable[[list[int]], str]
_INCOMPLETE = "\ufffd"  # what a decoder gives for bytes that are no character yet
_BYTES = 4  # the most of a character
_MOST = 64  # tokens that are decoded again for one more, where they end in no whole character


class TextStream:
    """Gives the text of tokens as soon as no later token can change it.

    Args:
        detokenize: gives the text of tokens.
        stops: strings that end the text; it ends before the first of them.
    """

    def __init__(self, detokenize: Detokenize, stops: Sequence[str]) -> None:
        self._detokenize = detokenize
        self._stops = stops
        # The last tokens, and how much of their text was given. A tokenizer may write a space
        # between two tokens, so that those of the last whole characters stay in front of new ones.
        self._tokens: list[int] = []
        self._whole = 0  # how many of them these are
        self._known = 0
        self._held = ""
        self.length = 0  # of all whole characters so far
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Adds a token; returns the text that is certain now."""
        self._tokens.append(token)
        text = self._detokenize(self._tokens)
        certain = _without_end(text)
        new, self._known = certain[self._known :], len(certain)
        self._held += new
        self.length += len(new)
        if new and certain == text:  # behind tokens without text alone, a space would be lost
            self._forget(self._whole)
            self._whole = len(self._tokens)
        elif len(self._tokens) > _MOST:  # no text: it is decoded again from an arbitrary place
            self._forget(len(self._tokens) - _MOST // 2)
            self._whole = 0
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            certain, self._held = self._held[: min(found)], ""
            return certain
        return self._give(len(self._held) - self._begun())

    def flush(self) -> str:
        """The rest of the text, where no token follows."""
        if not self.is_stopped:
            self._held += self._detokenize(self._tokens)[self._known :]
        return self._give(len(self._held))

    def _forget(self, count: int) -> None:
        del self._tokens[:count]
        self._known = len(_without_end(self._detokenize(self._tokens)))

    def _begun(self) -> int:
        """The length of the longest end of the held text with which a stop string begins."""
        lengths = range(min(len(self._held), max(map(len, self._stops), default=1) - 1), 0, -1)
        ends = (n for n in lengths if any(s.startswith(self._held[-n:]) for s in self._stops))
        return next(ends, 0)

    def _give(self, length: int) -> str:
        given, self._held = self._held[:length], self._held[length:]
        return given


def _without_end(text: str) -> str:
    """The text without what may be the first bytes of a character: a decoder writes one sign for
    them, or one for each."""
    end = len(text)
    while end > max(0, len(text) - _BYTES + 1) and text[end - 1] == _INCOMPLETE:
        end -= 1
    return text[:end]
