# SPDX-License-Identifier: MIT
"""Requests as users ask for them, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_count,
    as_integer,
    as_number,
    check_kind,
    is_integer,
    shown,
)

_NUMBERS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """How a request is continued, and where it ends.

    Args:
        max_new_tokens: the most tokens that are generated.
        temperature: divides the logits; 0 chooses the likeliest token, the first of equal ones.
        top_k, top_p, min_p, typical_p: which tokens may be drawn, and
        repetition_penalty, presence_penalty, frequency_penalty: how tokens so far count, as in
            :func:`transformer_kernels.functional.sample_logits`.
        seed: of this request's draws, which depend on nothing else than it, the logits, these
            parameters and the tokens before.
        stop_tokens: tokens that end the request, and are the last of it.
        stop: strings that end the request, and are not in its text.
        salt: requests with different ones share no pages (another adapter, another user).
        bias: pairs of a token and a number, which is added to its logit before all else.
        log_probs: with this number n, 0 or more, pieces have :class:`LogProbs`, with those of the n
            likeliest tokens.

    >>> tfk.decode.Parameters(max_new_tokens=100, stop_tokens=(2,)).temperature
    0.0
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    salt: str | None = None
    bias: tuple[tuple[int, float], ...] = ()
    log_probs: int | None = None

    def check(self, op: str) -> None:
        """Checks what no op checks that takes the parameters."""
        as_count(op, "max_new_tokens", self.max_new_tokens)
        as_integer(op, "seed", self.seed)
        for name in _NUMBERS:
            if (value := getattr(self, name)) is not None:
                as_number(op, name, value)
        if self.log_probs is not None:
            as_count(op, "log_probs", self.log_probs, least=0)
        if self.salt is not None:
            check_kind(op, "salt", self.salt, str, "a string or None")
        if type(self.stop_tokens) is not tuple or not all(map(is_integer, self.stop_tokens)):
            raise ArgumentTypeError(
                f"{op}: stop_tokens is {self.stop_tokens!r}, expected a tuple of integers"
            )
        if type(self.stop) is not tuple or not all(isinstance(s, str) and s for s in self.stop):
            raise ArgumentTypeError(
                f"{op}: stop is {self.stop!r}, expected a tuple of strings that are not empty"
            )
        _check_bias(op, self.bias)

    @cached_property
    def bias_tensors(self) -> tuple[Tensor, Tensor]:
        """The tokens of ``bias``, int64, and their numbers, float32."""
        tokens = torch.tensor([int(token) for token, _ in self.bias], dtype=torch.int64)
        return tokens, torch.tensor([float(x) for _, x in self.bias], dtype=torch.float32)


def _check_bias(op: str, bias: Any) -> None:
    if type(bias) is not tuple or not all(map(_is_bias, bias)):
        raise ArgumentTypeError(
            f"{op}: bias is {shown(bias)}, expected a tuple of pairs of a token and a number"
        )
    seen: set[int] = set()
    for token, number in bias:
        if not 0 <= token < 1 << 63:
            raise ArgumentValueError(
                f"{op}: bias has token {token}, expected tokens from 0 on, below 2^63"
            )
        if not abs(number) <= torch.finfo(torch.float32).max:
            raise ArgumentValueError(
                f"{op}: bias has {number} for token {token}, expected a finite number"
            )
        if token in seen:
            raise ArgumentValueError(f"{op}: bias has token {token} twice, expected it once")
        seen.add(token)


def _is_bias(pair: Any) -> bool:
    is_pair = type(pair) is tuple and len(pair) == 2
    return is_pair and is_integer(pair[0]) and isinstance(pair[1], Real)


class LogProbs(NamedTuple):
    """Log-probabilities in the model's own distribution, before all parameters of a request: of a
    piece's token, and of the likeliest ones, each with its own, the likeliest first."""

    token: float
    likeliest: list[tuple[int, float]]


class Piece(NamedTuple):
    """A token of a stream.

    ``text`` is what is certain by now: it lags behind where a character is incomplete or a stop
    string may have begun. ``reason`` is None but in the last piece: "stop" or "length". ``begin``
    is the number of whole characters of all tokens before this one. ``log_probs`` are there where
    they were asked for.
    """

    token: int
    text: str
    reason: str | None = None
    begin: int = 0
    log_probs: LogProbs | None = None


class Status(NamedTuple):
    """The state of an engine: requests that wait and run, pages that can be given, and what it did
    since it was made: rows that the model computed, tokens of requests that were found in pages
    instead, and times that a request gave its pages up."""

    waiting: int
    running: int
    available_pages: int
    rows: int
    found: int
    given_up: int


class Result(NamedTuple):
    """The tokens and the text of a request, and why it ended: "stop", "length", "cancelled", or
    "failed" where ``detokenize`` raised."""

    tokens: list[int]
    text: str
    reason: str
