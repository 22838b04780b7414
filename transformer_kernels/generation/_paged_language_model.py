# SPDX-License-Identifier: MIT
"""A language model over packed rows and a paged cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..decode import Batch, PagedAttention, PagedCache
from ..models import LanguageModel


class PagedLanguageModel:
    """A :class:`transformer_kernels.models.LanguageModel` as an engine's ``model``.

    Args:
        model: the model.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model.eval()

    def new_cache(self, num_pages: int, **options: Any) -> PagedCache:
        """Makes a cache of the model's sizes, dtype and device.

        Args:
            num_pages: number of pages.
            options: further arguments of :class:`transformer_kernels.decode.PagedCache`.
        """
        config, weight = self.model.config, self.model.tokens.weight
        options = {"dtype": weight.dtype, "device": weight.device, **options}
        room = num_pages * options.get("page_size", 16)
        options.setdefault("max_length", min(config.context, room))
        mix: Any = self.model.transformer.layers[0].mix
        return PagedCache(config.num_layers, num_pages, mix.parts[1], config.head_dim, **options)

    def read(self, cache: PagedCache) -> list[nn.Module | Tensor]:  # noqa: ARG002
        """Lists what a step reads; as :class:`transformer_kernels.decode.Recordable`."""
        return [self.model]

    @torch.no_grad()
    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        """Runs the model on packed rows; returns the logits (M, V) of ``batch.outputs``."""
        attend = PagedAttention(batch, cache)
        return self.model.packed_logits(batch.tokens, batch.positions, batch.outputs, attend)
