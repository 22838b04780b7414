# SPDX-License-Identifier: MIT
"""A Llama over packed rows and a paged cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..decode import Batch, PagedAttention, PagedCache
from ..models import Llama


class PagedLlama:
    """A :class:`transformer_kernels.models.Llama`, with packed weights or not, as an engine's
    ``model``.

    Args:
        model: the model.
    """

    def __init__(self, model: Llama) -> None:
        self.model = model.eval()

    def new_cache(self, num_pages: int, **options: Any) -> PagedCache:
        """Makes a cache of the model's sizes, dtype and device.

        Args:
            num_pages: number of pages.
            options: further arguments of :class:`transformer_kernels.decode.PagedCache`.
        """
        config, weight = self.model.config, self.model.model.norm.weight
        options = {"dtype": weight.dtype, "device": weight.device, **options}
        room = num_pages * options.get("page_size", 16)
        options.setdefault("max_length", min(config.context, room))
        return PagedCache(config.num_layers, num_pages, config.kv_heads, config.width, **options)

    def read(self, cache: PagedCache) -> list[nn.Module | Tensor]:
        """Lists what a step reads; as :class:`transformer_kernels.decode.Recordable`."""
        return [self.model, *self.model.rotation(cache.max_length)]

    @torch.no_grad()
    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        """Runs the model on packed rows; returns the logits (M, V) of ``batch.outputs``."""
        stack, attend = self.model.model, PagedAttention(batch, cache)
        tables = self.model.rotation(cache.max_length)
        here = tables[0][batch.positions], tables[1][batch.positions]
        x = stack.embed_tokens(batch.tokens[None])  # (1, N, C)
        for layer in stack.layers:
            q, k, v = layer.self_attn.heads(layer.input_layernorm(x), here)
            window = layer.self_attn.window[0] + 1
            seen = attend(layer.self_attn.index, q[0], k[0], v[0], window=window or None)
            x = x + layer.self_attn.o_proj(seen.flatten(1)[None])
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits: Tensor = self.model.lm_head(stack.norm(x[0, batch.outputs]))
        return logits
