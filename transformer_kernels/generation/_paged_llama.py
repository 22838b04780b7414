# SPDX-License-Identifier: MIT
"""A Llama over packed rows and a paged cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._torch import forwards_of, is_bare
from ..decode import Batch, PagedAttention, PagedCache
from ..functional import add_rms_norm
from ..models import Llama
from ..models.llama.model import Tables
from ..nn import RMSNorm

_NORMS = forwards_of(RMSNorm)


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
        x = stack.embed_tokens(batch.tokens[None])  # (1, N, C)
        branch: Tensor | None = None
        for layer in stack.layers:
            x, y = _sum_and_norm(layer.input_layernorm, branch, x)
            own = layer.self_attn
            if own.q_norm is None:
                q, k, v = own.projections(y)
                rotation: Tables | None = tables
            else:  # the norm is of numbers that are not rotated yet
                q, k, v = own.heads(y, (tables[0][batch.positions], tables[1][batch.positions]))
                rotation = None
            seen = attend(
                own.index, q[0], k[0], v[0], window=own.window[0] + 1 or None, rotation=rotation
            )
            x, y = _sum_and_norm(
                layer.post_attention_layernorm, own.o_proj(seen.flatten(1)[None]), x
            )
            branch = layer.mlp(y)
        assert branch is not None  # there is a layer
        _, y = _sum_and_norm(stack.norm, branch[:, batch.outputs], x[:, batch.outputs])
        logits: Tensor = self.model.lm_head(y[0])
        return logits


def _sum_and_norm(norm: Any, branch: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """``x + branch`` and its norm, in one pass where the norm is nothing but that."""
    if branch is None:
        return x, norm(x)
    if not is_bare(norm, _NORMS):
        x = x + branch
        return x, norm(x)
    y, total = add_rms_norm(
        branch, x, norm.normalized_shape, norm.weight, norm.eps,
        zero_centered_weight=norm.zero_centered_weight, backend=norm.backend,
    )  # fmt: skip
    return total, y
