# SPDX-License-Identifier: MIT
"""Guesses what follows in a text from what stood behind the same words earlier in it."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST, _SHORTEST = 3, 2  # tokens that have to agree


class Lookup:
    """A text, and where each two and three neighbouring tokens of it last stood."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}  # the place behind such neighbours
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Adds a token; the neighbours in front of it become known."""
        for size in range(_SHORTEST, _LONGEST + 1):
            if size <= len(self._tokens):
                self._behind[tuple(self._tokens[-size:])] = len(self._tokens)
        self._tokens.append(token)

    def guess(self, most: int) -> list[int]:
        """Returns so many tokens, which followed the longest equal neighbours, or none. A text that
        ends before them is taken to repeat itself."""
        for size in range(_LONGEST, _SHORTEST - 1, -1):
            place = self._behind.get(tuple(self._tokens[-size:]))
            if place is not None:
                period = len(self._tokens) - place
                return [self._tokens[place + i % period] for i in range(most)]
        return []
