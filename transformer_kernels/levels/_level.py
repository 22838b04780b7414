# SPDX-License-Identifier: MIT
"""What a level is: a way to run the block, whose weights it is given."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor


class Affine(NamedTuple):
    """The weight and the bias of a norm or a projection."""

    weight: Tensor
    bias: Tensor


class Weights(NamedTuple):
    """Of a block of C channels and I inner ones; a projection's weight is (out, in)."""

    norm_1: Affine
    qkv: Affine  # (3C, C)
    out: Affine  # (C, C)
    norm_2: Affine
    up: Affine  # (I, C)
    down: Affine  # (C, I)


class Level(ABC):
    """One of the five. It has no state: all weights are the block's."""

    name: str
    title: str
    hides: str | None = None  # why its operators cannot be counted

    @abstractmethod
    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        """(B, T, C) -> (B, T, C)."""

    def why_absent(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Why it cannot run on a device here; None where it can."""
        return None

    def why_untimed(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Why its time there would tell nothing; None where it tells something."""
        return None
