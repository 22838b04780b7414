# SPDX-License-Identifier: MIT
"""Attention by PyTorch, its FlexAttention, and FlashAttention's packages, on (B, T, H, D)."""

from __future__ import annotations

import importlib
import inspect
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

_COMPILED_FORMS = 1000  # of one function, before Dynamo would run it eagerly


def packed_in_torch(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> Any:
    """Causal attention within adjacent sequences, from PyTorch 2.10 on."""
    from torch.nn.attention.varlen import varlen_attn

    named = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"is_causal": True}
    if "window_size" in named:
        causal = {"window_size": (-1, 0)}
    return varlen_attn(q, k, v, offsets, offsets, longest, longest, **causal)


@lru_cache(maxsize=1)
def _compiled_flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compiled FlexAttention, as its documentation asks for; its backward pass may run
    repeatedly."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    shared = q.shape[2] != k.shape[2]
    with (
        torch._dynamo.config.patch(recompile_limit=_COMPILED_FORMS),
        functorch_config.patch(donated_buffer=False),
    ):
        out: Tensor = _compiled_flex_attention()(query, key, value, enable_gqa=shared, **options)
    return out.transpose(1, 2)


def fa3() -> ModuleType:
    """The module of FlashAttention-3, or of its forward pass alone."""
    try:
        return importlib.import_module("flash_attn_interface")
    except ImportError:
        return importlib.import_module("fa3_fwd_interface")


def _out_of(result: Any) -> Any:
    """The output; some versions also return the log-sum-exp."""
    return result[0] if isinstance(result, tuple) else result


def flash_attention_3(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return _out_of(fa3().flash_attn_func(q, k, v, **options))


def flash_attention_3_with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Any:
    return _out_of(fa3().flash_attn_with_kvcache(q, k_cache, v_cache, causal=True))


def packed_flash_attention_3(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> Any:
    run = fa3().flash_attn_varlen_func
    return _out_of(run(q, k, v, offsets, offsets, longest, longest, causal=True))


def flash_attention_4(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    from flash_attn.cute import flash_attn_func

    return _out_of(flash_attn_func(q, k, v, **options))


def packed_flash_attention_4(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> Any:
    from flash_attn.cute import flash_attn_varlen_func

    return _out_of(
        flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets,
            max_seqlen_q=longest, max_seqlen_k=longest, causal=True,
        )
    )  # fmt: skip
