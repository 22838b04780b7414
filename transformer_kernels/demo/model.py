# SPDX-License-Identifier: MIT
"""Hugging Face's GPT-2, stock and with our kernels put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GPT2Config,
    GPT2LMHeadModel,
)
from transformers.masking_utils import sdpa_mask

import transformer_kernels as tfk

_VOCABULARY = 256  # bytes


def stock_model(layers: int, width: int, heads: int, block: int, seed: int) -> Any:
    """Random weights, the same for the same seed; no dropout, so that runs can be compared."""
    torch.manual_seed(seed)
    configure: Any = GPT2Config  # typed in part only
    config = configure(
        vocab_size=_VOCABULARY,
        n_positions=block,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,  # learns sooner
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


def put_in_kernels(model: Any, attend: Callable[..., tuple[Tensor, Tensor | None]]) -> Any:
    """Our LayerNorm in every place of torch's, and ``attend`` for the attention."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.LayerNorm:
                setattr(module, name, _our_layer_norm(child))
    name = f"transformer_kernels_{attend.__name__}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)  # boolean, or none where causal says it all
    model.config._attn_implementation = name
    return model


def softmax_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_options: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention with scale, mask and softmax in one kernel."""
    weights = tfk.functional.softmax(
        query @ key.transpose(-1, -2),
        dim=-1,
        scale=scaling or query.size(-1) ** -0.5,
        mask=attention_mask,
        causal=attention_mask is None,
    )
    return (weights.to(value.dtype) @ value).transpose(1, 2), weights


def fused_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_options: Any,
) -> tuple[Tensor, None]:
    """All of the attention in one kernel, which reads the heads where the projection left them."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out: Tensor = tfk.functional.attention(
        q, k, v, scale=scaling, mask=attention_mask, causal=attention_mask is None
    )
    return out, None


def _our_layer_norm(stock: nn.LayerNorm) -> nn.Module:
    ours = tfk.nn.LayerNorm(stock.normalized_shape, eps=stock.eps, bias=stock.bias is not None)
    ours.load_state_dict(stock.state_dict())
    return ours
