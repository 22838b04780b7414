# SPDX-License-Identifier: MIT
"""How the next token is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._errors import ArgumentValueError, as_count, as_number

# Temperatures between these, and their reciprocals (CUDA multiplies by those), are in float32's
# range.
_COLDEST, _HOTTEST = 2.0**-126, 2.0**126


@dataclass(frozen=True)
class Sampling:
    """A distribution over tokens; the arguments apply in this order.

    Args:
        temperature: divides the logits; 0, and anything below 2^-126, chooses the likeliest token,
            the first of equal ones.
        top_k: number of the likeliest tokens that may be drawn.
        top_p: keeps the fewest of the remaining likeliest tokens that together have this
            probability, at least one (Holtzman et al. 2019, arXiv:1904.09751).

    >>> sampling = tfk.models.Sampling(temperature=0.0)
    >>> sampling.draw(torch.tensor([[0.1, 2.0, 0.3]]))
    tensor([1])
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
        """(B, V) -> tokens by falling probability, equal ones in order, and their probabilities;
        both are (B, top_k or V)."""
        wide = logits if logits.dtype is torch.float64 else logits.float()
        ordered, tokens = wide.sort(stable=True, dim=-1, descending=True)
        if self.top_k is not None and self.top_k < ordered.shape[1]:
            ordered, tokens = ordered[:, : self.top_k], tokens[:, : self.top_k]
        # The largest is subtracted first: a quotient that overflows is then -inf, and never drawn.
        likeliest = ordered[:, :1]
        below = (ordered - likeliest).masked_fill(ordered == likeliest, 0)  # infinite ones as well
        temperature = min(max(float(self.temperature), _COLDEST), _HOTTEST)
        shares = (below / temperature).softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            is_beyond = shares.cumsum(-1) - shares >= self.top_p
            is_beyond[:, 0] = False  # even where top_p is 0 in float32
            shares = shares.masked_fill(is_beyond, 0)
        return tokens, shares / shares.sum(-1, keepdim=True)

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws a token per row, (B, V) -> (B,). A row with NaN gives the index of the first, as
        argmax does.

        The draws are those of ``torch.multinomial``, whose own check would wait for the device, or
        end its process.
        """
        if self.temperature < _COLDEST:
            return logits.argmax(-1)
        tokens, shares = self.candidates(logits)
        noise = torch.empty_like(shares).exponential_(generator=generator)
        return tokens.gather(-1, (shares / noise).argmax(-1, keepdim=True)).squeeze(-1)
