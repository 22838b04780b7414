# SPDX-License-Identifier: MIT
"""The interface of a level: a way to run the block with given weights."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor


class Affine(NamedTuple):
    """The weight and the bias of a norm or a projection."""

    weight: Tensor
    bias: Tensor


class Weights(NamedTuple):
    """The weights of a block with C channels and I inner ones; a projection's weight is (out,
    in)."""

    norm_1: Affine
    qkv: Affine  # (3C, C)
    out: Affine  # (C, C)
    norm_2: Affine
    up: Affine  # (I, C)
    down: Affine  # (C, I)


class Level(ABC):
    """One of the five levels. It has no state: the block holds all weights.

    >>> level = tfk.levels.LEVELS["torch"]
    >>> level.why_absent(torch.device("cpu"))  # None: it can run there
    """

    name: str
    title: str
    hides: str | None = None  # why its operators cannot be counted; None where they can

    @abstractmethod
    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        """Runs the block, (B, T, C) -> (B, T, C)."""

    def why_absent(self, device: torch.device) -> str | None:  # noqa: ARG002
        """The reason why the level cannot run on a device here; None where it can."""
        return None

    def why_untimed(self, device: torch.device) -> str | None:  # noqa: ARG002
        """The reason why its time on a device would be meaningless; None where it is not."""
        return None
