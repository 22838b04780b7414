# SPDX-License-Identifier: MIT
"""A cache of keys and values of the tokens that a model has seen, allocated once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of all layers, for up to ``capacity`` tokens of a batch.

    Args:
        num_layers: number of layers.
        batch: number of sequences.
        capacity: the most tokens of a sequence.
        num_heads: number of heads of keys and values.
        head_dim: D, the channels of a head.
        device: device of the tensors.
        dtype: dtype of the tensors.

    ``length`` tokens are stored. A call of the model appends its own; setting ``length`` to a
    smaller number forgets the later ones, at no cost.

    >>> config = tfk.models.LanguageModelConfig(
    ...     vocab_size=256, context=32, dim=32, num_layers=2, num_heads=2)
    >>> model = tfk.models.LanguageModel(config).eval()
    >>> cache = model.new_cache(batch=1)
    >>> with torch.no_grad():
    ...     logits = model(torch.randint(256, (1, 5)), cache=cache)
    >>> cache.length
    5
    """

    def __init__(
        self, num_layers: int, batch: int, capacity: int, num_heads: int, head_dim: int,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        shape = (num_layers, batch, capacity, num_heads, head_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.keys = torch.empty(shape, **options)
        self.values = torch.empty(shape, **options)
        self.length = 0

    @property
    def batch(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the keys and values (B, T, H, D) of one layer; returns all of that layer, as
        views."""
        end = self.length + k.shape[1]
        self.keys[layer, :, self.length : end] = k
        self.values[layer, :, self.length : end] = v
        return self.keys[layer, :, :end], self.values[layer, :, :end]

    def __repr__(self) -> str:
        return f"KeyValueCache({self.length} of {self.capacity} tokens, batch {self.batch})"
