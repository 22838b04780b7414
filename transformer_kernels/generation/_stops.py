# SPDX-License-Identifier: MIT
"""The tokens and strings that end a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, as_integer, check_call
from ..decode._text import TextStream

_OP = "generate"


class Stops:
    """Says which sequences of a batch have ended.

    Args:
        tokens: each of which ends a sequence.
        strings: each of which ends a sequence as soon as it stands in its new text.
        detokenize: gives the text of tokens; for ``strings``.
        batch: number of sequences.
    """

    def __init__(
        self, tokens: Sequence[int] = (), strings: Sequence[str] = (),
        detokenize: Callable[[list[int]], str] | None = None, batch: int = 1,
    ) -> None:  # fmt: skip
        self._tokens = torch.tensor(tokens, dtype=torch.long)
        self._texts: list[TextStream] = []
        if strings and detokenize is not None:
            self._texts = [TextStream(detokenize, strings) for _ in range(batch)]

    def __bool__(self) -> bool:
        return bool(len(self._tokens) or self._texts)

    def seen(self, drawn: Tensor) -> Tensor:
        """Takes the next token (B,) of each sequence, on the CPU; returns (B,), whether it ended
        it."""
        ended = torch.isin(drawn, self._tokens)
        if not self._texts:
            return ended
        for text, token in zip(self._texts, drawn.tolist(), strict=True):
            if not text.is_stopped:
                text.push(token)
        found = torch.tensor([text.is_stopped for text in self._texts])
        return ended | found


def stops_of(
    stop: int | Sequence[int], strings: str | Sequence[str], tokenizer: Any, batch: int
) -> Stops:
    """Checks the arguments of ``generate``."""
    tokens = (stop,) if isinstance(stop, int) else stop
    numbers = [int(as_integer(_OP, "stop", token)) for token in tokens]
    texts = (strings,) if isinstance(strings, str) else tuple(strings)
    if not all(isinstance(text, str) and text for text in texts):
        raise ArgumentTypeError(
            f"{_OP}: stop_strings is {strings!r}, expected strings that are not empty"
        )
    if not texts:
        return Stops(numbers)
    if tokenizer is None:
        raise ArgumentValueError(f"{_OP}: tokenizer is None, expected one beside stop_strings")
    decode = getattr(tokenizer, "decode", None)
    check_call(_OP, "tokenizer.decode", decode)
    return Stops(numbers, texts, decode, batch)
