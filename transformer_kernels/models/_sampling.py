# SPDX-License-Identifier: MIT
"""How the next token is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentValueError, as_count, as_number
from ..functional import sample_logits

_COLDEST = 2.0**-126  # temperatures below it draw nothing
_MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Sampling:
    """A distribution over tokens; the arguments apply in this order, as in
    :func:`transformer_kernels.functional.sample_logits`.

    Args:
        temperature: divides the logits; 0, and anything below 2^-126, chooses the likeliest token,
            the first of equal ones.
        top_k: number of the likeliest tokens that may be drawn, with all that equal the last.
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

    def seeds(
        self, batch: int, device: torch.device, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws a seed of each sequence, (B); where the temperature draws nothing they are 0."""
        if self.temperature < _COLDEST:
            return torch.zeros(batch, dtype=torch.int64, device=device)
        return torch.randint(_MOST_SEED, (batch,), generator=generator, device=device)

    def draw(
        self, logits: Tensor, generator: torch.Generator | None = None, *,
        seeds: Tensor | None = None, position: int | Tensor = 0,
    ) -> Tensor:  # fmt: skip
        """Draws a token per row, (B, V) -> (B,). A row with NaN gives the index of the first, as
        argmax does.

        Args:
            logits: (B, V).
            generator: source of the seeds, on the device of the logits; by default PyTorch's.
            seeds: (B), int64, in place of new ones: those of :meth:`seeds`.
            position: that of the token in its sequence, which draws another number at each.
        """
        if seeds is None:
            seeds = self.seeds(len(logits), logits.device, generator)
        tokens: Any = sample_logits(
            logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=seeds,
            position=position,
        )  # fmt: skip
        return tokens
