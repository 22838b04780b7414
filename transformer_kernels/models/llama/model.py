# SPDX-License-Identifier: MIT
"""Llama 2 and 3, Qwen 2 and 3 and Mistral: one model of this package's ops."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import ArgumentValueError, as_count
from ...functional import attention, qk_norm, rope
from ...nn.norm import RMSNorm
from ...ops.pointwise._ops import GATED
from .._cache import KeyValueCache
from .._checks import check_beside, check_config, check_range, check_shape
from .config import LlamaConfig
from .load import read

_swiglu = GATED["swiglu"].call
Tables = tuple[Tensor, Tensor]  # cosines and sines of positions, (P, D / 2)


class Attention(nn.Module):
    """Attention of tokens to themselves and to those before them, (B, T, C) -> (B, T, C)."""

    def __init__(self, config: LlamaConfig, index: int, **options: Any) -> None:
        super().__init__()
        self.index, self.head_dim, self.window = index, config.width, config.window(index)
        queries, keys = config.num_heads * config.width, config.kv_heads * config.width

        def linear(outputs: int) -> nn.Linear:
            return nn.Linear(config.dim, outputs, bias=config.qkv_bias, **options)

        self.q_proj, self.k_proj, self.v_proj = linear(queries), linear(keys), linear(keys)
        self.o_proj = nn.Linear(queries, config.dim, bias=config.out_bias, **options)
        self.eps = config.eps
        self.q_norm = RMSNorm(config.width, config.eps, **options) if config.qk_norm else None
        self.k_norm = RMSNorm(config.width, config.eps, **options) if config.qk_norm else None

    def projections(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, T, H, D), without positions."""
        return tuple(
            project(x).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )

    def heads(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, T, H, D), at the positions of the tables."""
        q, k, v = self.projections(x)
        cos, sin = tables
        if self.q_norm is None or self.k_norm is None:
            q, k = rope(q, k, cos, sin)
        else:
            q, k = qk_norm(q, k, self.q_norm.weight, self.k_norm.weight, self.eps, cos=cos, sin=sin)
        return q, k, v

    def forward(self, x: Tensor, tables: Tables, cache: KeyValueCache | None) -> Tensor:
        q, k, v = self.heads(x, tables)
        if cache is not None:
            k, v = cache.append(self.index, k, v)
        seen: Tensor = attention(q, k, v, causal=True, window=self.window)
        y: Tensor = self.o_proj(seen.flatten(2))
        return y


class MLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``, (..., C) -> (..., C)."""

    def __init__(self, config: LlamaConfig, **options: Any) -> None:
        super().__init__()
        options = {"bias": False, **options}
        self.gate_proj = nn.Linear(config.dim, config.inner_dim, **options)
        self.up_proj = nn.Linear(config.dim, config.inner_dim, **options)
        self.down_proj = nn.Linear(config.inner_dim, config.dim, **options)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(_swiglu(self.gate_proj(x), self.up_proj(x), None, None, "auto"))
        return y


class Layer(nn.Module):
    """``h = x + attention(norm(x))`` and ``h + mlp(norm(h))``."""

    def __init__(self, config: LlamaConfig, index: int, **options: Any) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.dim, config.eps, **options)
        self.self_attn = Attention(config, index, **options)
        self.post_attention_layernorm = RMSNorm(config.dim, config.eps, **options)
        self.mlp = MLP(config, **options)

    def forward(self, x: Tensor, tables: Tables, cache: KeyValueCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables, cache)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Stack(nn.Module):
    """The embedding, the layers and the last norm: tokens (B, T) -> (B, T, C)."""

    layers: Any  # of Layer; PyTorch's list has no type for its modules

    def __init__(self, config: LlamaConfig, **options: Any) -> None:
        super().__init__()
        table = torch.empty(config.vocab_size, config.dim, **options)
        if not table.is_meta:  # where drawing would load PyTorch's compiler, for nothing
            nn.init.normal_(table, std=config.dim**-0.5)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim, _weight=table)
        self.layers = nn.ModuleList(
            Layer(config, index, **options) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.dim, config.eps, **options)

    def forward(self, tokens: Tensor, tables: Tables, cache: KeyValueCache | None) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, tables, cache)
        y: Tensor = self.norm(x)
        return y


class Llama(nn.Module):
    """Computes logits of the next token from tokens: Llama 2 and 3, Qwen 2 and 3, Mistral.

    The ``state_dict`` is that of Hugging Face's model, and the logits are its logits.
    :meth:`from_pretrained` reads trained weights.

    Args:
        config: its configuration.
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> model = tfk.models.Llama(tfk.models.LlamaConfig(
    ...     vocab_size=256, context=64, dim=32, num_layers=2, num_heads=4, num_kv_heads=2,
    ...     inner_dim=48))
    >>> model(torch.randint(256, (1, 7))).shape
    torch.Size([1, 7, 256])
    >>> tfk.generate(model, torch.randint(256, (1, 4)), 3).shape
    torch.Size([1, 7])
    """

    def __init__(
        self, config: LlamaConfig, *, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_config("Llama", config, LlamaConfig)
        self.config = config
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.model = Stack(config, **options)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False, **options)
        if config.tie_weights:
            self.lm_head.weight = self.model.embed_tokens.weight
        self._tables: Tables | None = None

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], *, dtype: torch.dtype | None = None,
        device: torch.device | str | None = None, packed: bool = True,
    ) -> Llama:  # fmt: skip
        """Reads a folder of Hugging Face's (``config.json`` and safetensors), or a GGUF file.

        Args:
            path: the folder or the file.
            dtype: dtype of the parameters; by default the one that ``config.json`` names, and
                float32 for GGUF.
            device: where the parameters are put; by default the CPU.
            packed: whether weights of 4 and 8 bits stay packed, for the kernels that read them so
                (GGUF's Q8_0, Q4_0, Q4_1, Q4_K and Q6_K). False widens them to ``dtype``.

        Raises:
            ArgumentValueError: the files lack something, or do not agree; the message names the
                file.
            ImportError: a package is missing that reads the files.
        """
        config, fill = read(path, dtype, device, packed)
        model = cls(config, device="meta")
        fill(model)
        return model.eval()

    def forward(
        self, tokens: Tensor, *, cache: KeyValueCache | None = None, logits_to_keep: int = 0
    ) -> Tensor:
        """Returns logits (B, T, V).

        Args:
            tokens: int32 or int64, (B, T), from 0 to V - 1.
            cache: a cache from :meth:`new_cache` with the tokens before ``tokens``, which are
                appended. Without gradients.
            logits_to_keep: computes the logits of so many last tokens only; 0 for all.

        Raises:
            ArgumentValueError, ArgumentTypeError: the model cannot take an argument; the message
                names it.
        """
        first = 0 if cache is None else cache.length
        self._check(tokens, cache)
        keep = as_count("Llama", "logits_to_keep", logits_to_keep, least=0)
        end = first + tokens.shape[1]
        cos, sin = self.rotation(end)
        x = self.model(tokens, (cos[first:end], sin[first:end]), cache)
        if cache is not None:
            cache.length = end
        y: Tensor = self.lm_head(x[:, -keep:] if keep else x)
        return y

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KeyValueCache:
        """An empty cache for ``batch`` sequences of ``capacity`` tokens, by default the context."""
        config, weight = self.config, self.model.norm.weight
        batch = as_count("Llama", "batch", batch)
        capacity = config.context if capacity is None else as_count("Llama", "capacity", capacity)
        return KeyValueCache(
            config.num_layers, batch, capacity, config.kv_heads, config.width, weight.device,
            weight.dtype,
        )  # fmt: skip

    def rotation(self, positions: int) -> Tables:
        """Cosines and sines (P, D / 2) of at least so many positions; float32, or float64 in a
        model of it."""
        weight = self.model.norm.weight
        dtype = torch.float64 if weight.dtype is torch.float64 else torch.float32
        if self._tables is None or len(self._tables[0]) < positions:
            count = max(256, 1 << (positions - 1).bit_length())
            turns, factor = self.config.frequencies()
            angles = torch.outer(torch.arange(count, dtype=torch.float64), turns)
            cos, sin = (
                table.mul(factor).to(weight.device, dtype) for table in (angles.cos(), angles.sin())
            )
            self._tables = cos, sin
        return self._tables

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._tables = None
        return super()._apply(fn, recurse)

    def _check(self, tokens: Tensor, cache: KeyValueCache | None) -> None:
        op = "Llama"
        check_shape(op, "tokens", tokens, "batch", "time")
        check_beside(op, "tokens", tokens, self.model.norm.weight)
        check_range(op, "tokens", tokens, self.config.vocab_size, "the vocabulary")
        batch, length = tokens.shape
        room = self.config.context
        if cache is not None:
            if torch.is_grad_enabled():
                raise ArgumentValueError(
                    f"{op}: cache is given, expected none where gradients are recorded"
                    " (torch.no_grad())"
                )
            if batch != cache.batch:
                raise ArgumentValueError(
                    f"{op}: tokens has a batch of {batch}, expected {cache.batch} (the cache's)"
                )
            room = min(room, cache.capacity) - cache.length
        if length > room:
            raise ArgumentValueError(
                f"{op}: tokens has {length} tokens, expected at most {room} (what the context and"
                " the cache leave)"
            )
