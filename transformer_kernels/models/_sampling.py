# SPDX-License-Identifier: MIT
"""How the next token is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._errors import ArgumentValueError, as_count, as_number


@dataclass(frozen=True)
class Sampling:
    """A distribution of tokens, in this order.

    Args:
        temperature: logits are divided by it; 0 chooses the likeliest token.
        top_k: how many of the likeliest tokens may be drawn.
        top_p: of what is left then, the fewest of the likeliest tokens that are together this
            probable, one at least (Holtzman et al. 2019, arXiv:1904.09751).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def check(self, op: str) -> None:
        temperature = as_number(op, "temperature", self.temperature)
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ArgumentValueError(
                f"{op}: temperature is {temperature:g}, expected a finite number, 0 or above"
            )
        if self.top_k is not None:
            as_count(op, "top_k", self.top_k)
        if self.top_p is not None and not 0 < as_number(op, "top_p", self.top_p) <= 1:
            raise ArgumentValueError(
                f"{op}: top_p is {self.top_p}, expected more than 0 and at most 1"
            )

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(B, V) -> tokens from the likeliest on, of equal ones the first first, and how probable
        each is, both (B, top_k or V)."""
        scaled = logits.float() / self.temperature
        ordered, tokens = scaled.sort(stable=True, dim=-1, descending=True)
        ordered, tokens = ordered[:, : self.top_k], tokens[:, : self.top_k]
        shares = ordered.softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            before = shares.cumsum(-1) - shares
            shares = shares.masked_fill(before >= self.top_p, 0)
        return tokens, shares / shares.sum(-1, keepdim=True)

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, V) -> (B,)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        tokens, shares = self.candidates(logits)
        return tokens.gather(-1, torch.multinomial(shares, 1, generator=generator)).squeeze(-1)
