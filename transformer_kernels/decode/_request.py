# SPDX-License-Identifier: MIT
"""A request on its way through the engine."""

from __future__ import annotations

from ._parameters import Parameters, Piece, Result
from ._sample import Draw, Drawn
from ._text import Detokenize, TextStream


class Request:
    """A prompt and what was generated behind it; it is finished when it has a ``reason``."""

    def __init__(
        self, number: int, prompt: list[int], parameters: Parameters, detokenize: Detokenize | None
    ) -> None:
        self.number = number
        self.tokens = prompt
        self.prompt_length = len(prompt)
        self.parameters = parameters
        self.is_in_step = False
        self.reason: str | None = None
        self.error: Exception | None = None  # that detokenize raised
        self.pieces: list[Piece] = []
        self.taken = 0  # how many of them Engine.take gave
        self._text = None if detokenize is None else TextStream(detokenize, parameters.stop)

    @property
    def most_tokens(self) -> int:
        """The most tokens that are ever stored: nothing follows the last, so it is not."""
        return self.prompt_length + self.parameters.max_new_tokens - 1

    @property
    def is_next_last(self) -> bool:
        """Whether the next token is the last that may come."""
        return len(self.tokens) + 1 - self.prompt_length >= self.parameters.max_new_tokens

    @property
    def draw(self) -> Draw:
        """The draw of the next token."""
        number = len(self.tokens) - self.prompt_length
        return Draw(self.parameters, number, self.tokens, self.prompt_length)

    def accept(self, drawn: Drawn) -> None:
        """Adds a token, and finishes the request where it is the last, or where its text cannot be
        told."""
        self.tokens.append(drawn.token)
        try:
            self.pieces.append(self._piece(drawn))
        except Exception as error:  # the others of the step go on
            self.error, self.reason = error, "failed"

    def _piece(self, drawn: Drawn) -> Piece:
        is_stop = drawn.token in self.parameters.stop_tokens
        begin = 0 if self._text is None else self._text.length
        text = "" if self._text is None or is_stop else self._text.push(drawn.token)
        if is_stop or (self._text is not None and self._text.is_stopped):
            self.reason = "stop"
        elif len(self.tokens) - self.prompt_length >= self.parameters.max_new_tokens:
            self.reason = "length"
        if self.reason is not None and self._text is not None:
            text += self._text.flush()
        return Piece(drawn.token, text, self.reason, begin, drawn.log_probs)

    @property
    def result(self) -> Result:
        text = "".join(piece.text for piece in self.pieces)
        return Result(self.tokens[self.prompt_length :], text, self.reason or "cancelled")
