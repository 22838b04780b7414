# SPDX-License-Identifier: MIT
"""A causal language model: GPT-2's parts by default, Llama's by configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import (
    ArgumentValueError,
    as_count,
    as_flag,
    as_integer,
    as_number,
)
from .._names import explain_names
from .._torch import evaluating
from ..fuse.derive import know, original, stands
from ..nn.rope import RotaryEmbedding
from ._cache import KeyValueCache
from ._checks import (
    check_beside,
    check_config,
    check_range,
    check_shape,
    one_of,
)
from ._config import TransformerConfig
from ._parts import Activation, Attend, SelfAttention, Tables
from ._sampling import Sampling
from ._switch import Model
from ._transformer import Layer, Transformer, initialise

_POSITIONS = ("learned", "rope")


@explain_names
@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TransformerConfig):
    """The configuration of a language model: :class:`TransformerConfig` and, around the layers:

    Args:
        vocab_size: V, the number of tokens in the vocabulary.
        context: the most tokens that the model sees at once.
        positions: ``"learned"``, a table, or ``"rope"``, rotations of queries and keys.
        rope_base: base of the rotations' frequencies.
        tie_weights: whether the head's weight is the table of tokens.

    >>> config = tfk.models.LanguageModelConfig(
    ...     vocab_size=256, context=32, dim=32, num_layers=2, num_heads=2, positions="rope")
    >>> config.num_heads
    2
    """

    vocab_size: int
    context: int
    positions: str = "learned"
    rope_base: float = 10000.0
    tie_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        op = type(self).__name__
        as_count(op, "vocab_size", self.vocab_size)
        as_count(op, "context", self.context)
        one_of(op, "positions", self.positions, _POSITIONS)
        as_number(op, "rope_base", self.rope_base)
        as_flag(op, "tie_weights", self.tie_weights)
        if self.positions == "rope" and self.head_dim % 2:
            raise ArgumentValueError(
                f"{op}: dim is {self.dim}, expected an even number of channels in each of"
                f" {self.num_heads} heads (positions='rope')"
            )


class LanguageModel(Model):
    """Computes logits of the next token from tokens.

    Args:
        config: its configuration.
        kernels: ``"ours"`` for this package's kernels: the layers are fused by
            :func:`transformer_kernels.fuse`, without timing, when the model is made and when this
            is set. Or ``"torch"`` for stock PyTorch. Both have the same parameters, ``state_dict``
            and results; ``model.kernels`` may be set at any time.

    Initial parameters depend on PyTorch's seed alone.

    >>> model = tfk.models.LanguageModel(tfk.models.LanguageModelConfig(
    ...     vocab_size=256, context=32, dim=32, num_layers=2, num_heads=2))
    >>> tokens = torch.randint(256, (2, 17))
    >>> loss = model(tokens[:, :-1], tokens[:, 1:])
    >>> model.generate(tokens[:, :4], 3, temperature=0.8, top_k=40).shape
    torch.Size([2, 7])
    """

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, kernels: str = "ours") -> None:
        super().__init__(kernels)
        check_config("LanguageModel", config, LanguageModelConfig)
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.context, config.dim) if learned else None
        self.rotary = (
            None if learned else RotaryEmbedding(config.head_dim, config.context, config.rope_base)
        )
        self.transformer = Transformer(config, partial(SelfAttention, config, causal=True))
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        initialise(self, self.transformer)
        if config.tie_weights:
            self.head.weight = self.tokens.weight
        self.kernels = kernels

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, *, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Returns logits (B, T, V), or with ``targets`` the mean cross-entropy.

        Args:
            tokens: int32 or int64, (B, T), from 0 to V - 1.
            targets: int64, (B, T), the tokens that follow; -100 is ignored.
            cache: a cache from :meth:`new_cache` with the tokens before ``tokens``, which are
                appended. Without gradients.

        Raises:
            ArgumentValueError, ArgumentTypeError: the model cannot take an argument; the message
                names it. On the CPU a token out of range is an :class:`ArgumentIndexError`; on
                CUDA, which is not waited for, PyTorch asserts.
        """
        return self._logits_or_loss(self._features(tokens, cache, self.transformer.p), targets)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KeyValueCache:
        """An empty cache for ``batch`` sequences of ``capacity`` tokens, by default the context."""
        op, config, weight = "LanguageModel", self.config, self.tokens.weight
        batch = as_count(op, "batch", batch)
        capacity = config.context if capacity is None else as_count(op, "capacity", capacity)
        mix: Any = self.transformer.layers[0].mix  # of a rank among many it has fewer heads
        return KeyValueCache(
            config.num_layers, batch, capacity, mix.parts[1], config.head_dim, weight.device,
            weight.dtype,
        )  # fmt: skip

    @torch.no_grad()
    def generate(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop_token: int | None = None,
        generator: torch.Generator | None = None,
        use_cache: bool = True,
    ) -> Tensor:
        """Continues each prompt, without dropout. Several threads may call it, and train meanwhile.
        Modules that were put into the model from outside are in evaluation mode until the last call
        has ended.

        Args:
            prompt: (B, T), tokens as in :meth:`forward`, T at least 1.
            max_new_tokens: number of new tokens at most, within the context.
            temperature: divides the logits; 0, and anything below 2^-126, chooses the likeliest
                token without drawing.
            top_k: draws among this many of the likeliest tokens.
            top_p: draws among the fewest likeliest tokens that together have this probability.
            stop_token: ends a sequence, which is filled with it to the length of the longest.
            generator: source of the sequences' seeds, on the model's device; by default PyTorch's.
            use_cache: keeps keys and values instead of computing them again for each token.

        Returns:
            (B, T + new), int64: the prompts and their continuations.
        """
        op = "LanguageModel.generate"
        sampling = Sampling(temperature, top_k, top_p)
        sampling.check(op)
        count = self._check_generation(op, prompt, max_new_tokens, stop_token)
        batch, length = prompt.shape
        tokens = prompt.new_empty((batch, length + count), dtype=torch.long)
        tokens[:, :length] = prompt
        stopped = torch.zeros(batch, dtype=torch.bool, device=prompt.device)
        cache = self.new_cache(batch, length + count) if use_cache and count and batch else None
        seeds = sampling.seeds(batch, prompt.device, generator)
        # The argument p turns dropout off, because modules in training mode may serve other threads
        # meanwhile. Modules from outside know evaluation only by their mode.
        others = (module for module in self.modules() if not _is_own(module))
        with evaluating(others):
            for end in range(length, length + count):
                begin = 0 if cache is None else cache.length
                features = self._features(tokens[:, begin:end], cache, p=0.0)
                logits = self.head(features[:, -1])
                drawn = sampling.draw(logits, seeds=seeds, position=end)
                if stop_token is not None:
                    drawn = drawn.masked_fill(stopped, stop_token)
                    stopped |= drawn == stop_token
                tokens[:, end] = drawn
                if stop_token is not None and stopped.all():
                    return tokens[:, : end + 1]
        return tokens

    def _features(self, tokens: Tensor, cache: KeyValueCache | None, p: float) -> Tensor:
        self._check_kernels()
        self._check(tokens, cache)
        first, length = 0 if cache is None else cache.length, tokens.shape[1]
        x: Tensor = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(first, first + length, device=tokens.device))
        tables = self._tables(slice(first, first + length))
        y: Tensor = self.transformer(self._dropout(x, p), p, tables, cache)
        if cache is not None:
            cache.length += length
        return y

    def packed_logits(
        self, tokens: Tensor, positions: Tensor, outputs: Tensor, attend: Attend
    ) -> Tensor:
        """Returns the logits (M, V) of some rows of tokens (N,), of any sequences.

        Args:
            tokens: int64, (N,).
            positions: int64, (N,), each token's in its sequence.
            outputs: int64, (M,), the rows whose logits are wanted.
            attend: ``attend(layer, q, k, v)`` keeps keys and values (N, Hk, D), and gives the
                attention (N, H, D) of each row to the tokens of its sequence up to itself.
        """
        self._check_kernels()
        x: Tensor = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        y = self.transformer(x[None], 0.0, self._tables(positions), attend)
        logits: Tensor = self.head(y[0, outputs])
        return logits

    def _tables(self, positions: slice | Tensor) -> Tables | None:
        """Cosines and sines of positions; None for learned ones."""
        if self.rotary is None:
            return None
        halves = (x[positions][None] for x in (self.rotary.cos, self.rotary.sin))
        cos, sin = (torch.cat((x, x), -1) for x in halves)
        return cos, sin

    def _example(self) -> tuple[Any, ...]:
        length = min(8, self.config.context)
        return self._rows(2, length), 0.0, self._tables(slice(length))

    def _check(self, tokens: Tensor, cache: KeyValueCache | None) -> None:
        op, config = "LanguageModel", self.config
        check_shape(op, "tokens", tokens, "batch", "time")
        check_beside(op, "tokens", tokens, self.tokens.weight)
        check_range(op, "tokens", tokens, config.vocab_size, "the vocabulary")
        length = tokens.shape[1]
        if cache is None:
            if length > config.context:
                raise ArgumentValueError(
                    f"{op}: tokens has {length} tokens, expected at most {config.context} (the"
                    " context)"
                )
            return
        if torch.is_grad_enabled():
            raise ArgumentValueError(
                f"{op}: cache is given, expected none where gradients are recorded"
                " (torch.no_grad())"
            )
        if tokens.shape[0] != cache.batch:
            raise ArgumentValueError(
                f"{op}: tokens has a batch of {tokens.shape[0]}, expected {cache.batch} (the"
                " cache's)"
            )
        room = min(cache.capacity, config.context) - cache.length
        if length > room:
            raise ArgumentValueError(
                f"{op}: tokens has {length} tokens, expected at most {room} (what the cache and"
                f" the context have left behind {cache.length})"
            )

    def _check_generation(
        self, op: str, prompt: Tensor, max_new_tokens: int, stop_token: int | None
    ) -> int:
        context, vocab_size = self.config.context, self.config.vocab_size
        check_shape(op, "prompt", prompt, "batch", "time")
        length = prompt.shape[1]
        if not 1 <= length <= context:
            raise ArgumentValueError(
                f"{op}: prompt has {length} tokens, expected 1 to {context} (the context)"
            )
        check_beside(op, "prompt", prompt, self.tokens.weight)
        check_range(op, "prompt", prompt, vocab_size, "the vocabulary")
        count = int(as_integer(op, "max_new_tokens", max_new_tokens))
        if not 0 <= count <= context - length:
            raise ArgumentValueError(
                f"{op}: max_new_tokens is {count}, expected 0 to {context - length} (the context"
                f" of {context} less a prompt of {length})"
            )
        if (
            stop_token is not None
            and not 0 <= as_integer(op, "stop_token", stop_token) < vocab_size
        ):
            raise ArgumentValueError(
                f"{op}: stop_token is {stop_token}, expected 0 to {vocab_size - 1} (the vocabulary)"
            )
        return count


_OWN = (
    LanguageModel, Transformer, Layer, SelfAttention, Activation, RotaryEmbedding, nn.ModuleList,
    nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm,
)  # fmt: skip
for _kind in _OWN:
    know(_kind)


def _is_own(module: nn.Module) -> bool:
    """Whether the module is as the model made it, fused or not."""
    return original(type(module)) in _OWN and stands(module)
