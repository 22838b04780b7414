# SPDX-License-Identifier: MIT
"""The configuration of a Llama, and how it is read from Hugging Face's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentValueError, as_count, as_flag, as_number
from ..._names import explain_names
from ...ops.attention._arguments import MOST_DIM
from ...ops.rope.tables import frequencies

# Architectures of Hugging Face that this model is, and those whose queries and keys are normed.
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
NORMED = ("qwen3",)
_FLAGS = ("qkv_bias", "out_bias", "qk_norm", "tie_weights")


@explain_names
@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The configuration of :class:`Llama`.

    Args:
        vocab_size: V, the number of tokens in the vocabulary.
        context: the most tokens that the model sees at once.
        dim: C, the channels between layers.
        num_layers: number of layers.
        num_heads: H, the heads of queries.
        num_kv_heads: heads of keys and values, a divisor of ``num_heads``; by default equal to it.
        head_dim: D, the channels of a head; by default ``dim / num_heads``.
        inner_dim: channels inside the MLP.
        eps: eps of the norms.
        rope_base: base of the rotations' frequencies.
        rope_scaling: scaling of the frequencies, as
            :func:`transformer_kernels.functional.rope_tables` takes it.
        rope_factors: D / 2 numbers that divide the frequencies, as GGUF files store them.
        qkv_bias: whether the projections to queries, keys and values have a bias (Qwen 2).
        out_bias: whether the projection behind attention has one.
        qk_norm: whether the heads of queries and keys are normed (Qwen 3).
        tie_weights: whether the head's weight is the table of tokens.
        sliding_window: how many tokens a query sees, itself among them; None for all.
        sliding_layers: the layers that have the window; None for all.

    >>> config = tfk.models.LlamaConfig(
    ...     vocab_size=256, context=64, dim=32, num_layers=2, num_heads=4, num_kv_heads=2,
    ...     inner_dim=48)
    >>> config.head_dim
    8
    """

    vocab_size: int
    context: int
    dim: int
    num_layers: int
    num_heads: int
    inner_dim: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    eps: float = 1e-5
    rope_base: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_factors: tuple[float, ...] | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    tie_weights: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        op = type(self).__name__
        for name in ("vocab_size", "context", "dim", "num_layers", "num_heads", "inner_dim"):
            as_count(op, name, getattr(self, name))
        for name, default in (("num_kv_heads", self.num_heads), ("head_dim", self._share())):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            as_count(op, name, getattr(self, name))
        if self.num_heads % self.kv_heads:
            raise ArgumentValueError(
                f"{op}: num_kv_heads is {self.kv_heads}, expected a divisor of {self.num_heads}"
                " (num_heads)"
            )
        if self.width % 2 or self.width > MOST_DIM:
            raise ArgumentValueError(
                f"{op}: head_dim is {self.width}, expected an even number of at most {MOST_DIM}"
            )
        if self.sliding_window is not None:
            as_count(op, "sliding_window", self.sliding_window)
        if self.rope_factors is not None and len(self.rope_factors) != self.width // 2:
            raise ArgumentValueError(
                f"{op}: rope_factors has {len(self.rope_factors)} numbers, expected"
                f" {self.width // 2} (half of head_dim)"
            )
        as_number(op, "eps", self.eps)
        for name in _FLAGS:
            as_flag(op, name, getattr(self, name))
        self.frequencies()  # refuses what the rotation cannot be

    def _share(self) -> int:
        if self.dim % self.num_heads:
            raise ArgumentValueError(
                f"{type(self).__name__}: dim is {self.dim}, expected a multiple of num_heads"
                f" ({self.num_heads}), or head_dim"
            )
        return self.dim // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def width(self) -> int:
        """D, the channels of a head."""
        return self._share() if self.head_dim is None else self.head_dim

    def window(self, layer: int) -> tuple[int, int]:
        """How many tokens to the left and right of itself a query of this layer sees."""
        slides = self.sliding_layers is None or layer in self.sliding_layers
        return (self.sliding_window - 1, 0) if self.sliding_window and slides else (-1, -1)

    def frequencies(self) -> tuple[Tensor, float]:
        """The D / 2 frequencies in float64, and the factor of cosines and sines."""
        turns, factor = frequencies(self.width, self.rope_base, self.rope_scaling)
        if self.rope_factors is not None:
            turns = turns / torch.tensor(self.rope_factors, dtype=torch.float64)
        return turns, factor

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Reads the fields of a ``config.json``; what the model cannot do is refused by name.

        Args:
            config: the fields, as ``json.load`` gives them.
        """
        kind = config.get("model_type")
        if kind not in ARCHITECTURES:
            raise ArgumentValueError(
                f"Llama: model_type is {kind!r}, expected one of {', '.join(ARCHITECTURES)}"
            )
        for name, wanted in (("hidden_act", "silu"), ("mlp_bias", False)):
            if config.get(name, wanted) != wanted:
                raise ArgumentValueError(f"Llama: {name} is {config[name]!r}, expected {wanted!r}")
        base, scaling = _rotation(config)
        is_qwen2 = kind == "qwen2"
        return cls(
            vocab_size=_field(config, "vocab_size"),
            context=_field(config, "max_position_embeddings"),
            dim=_field(config, "hidden_size"),
            num_layers=_field(config, "num_hidden_layers"),
            num_heads=_field(config, "num_attention_heads"),
            num_kv_heads=config.get("num_key_value_heads"),
            head_dim=config.get("head_dim"),
            inner_dim=_field(config, "intermediate_size"),
            eps=config.get("rms_norm_eps", 1e-6),
            rope_base=base,
            rope_scaling=scaling,
            qkv_bias=is_qwen2 or bool(config.get("attention_bias")),
            out_bias=not is_qwen2 and bool(config.get("attention_bias")),
            qk_norm=kind in NORMED,
            tie_weights=bool(config.get("tie_word_embeddings")),
            **_sliding(config, kind),
        )


def _field(config: Mapping[str, Any], name: str) -> Any:
    if config.get(name) is None:
        raise ArgumentValueError(f"Llama: the configuration has no {name}")
    return config[name]


def _rotation(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """The base and the scaling: ``rope_parameters`` since transformers 5, and before that
    ``rope_theta`` and ``rope_scaling``."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = given.get("rope_theta", config.get("rope_theta", 10000.0))
    scaling = {key: value for key, value in given.items() if key != "rope_theta"}
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    return base, None if plain and set(scaling) <= {"rope_type", "type"} else scaling


def _sliding(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    window = config.get("sliding_window")
    uses = config.get("use_sliding_window", False) if kind.startswith("qwen") else kind == "mistral"
    if window is None or not uses:
        return {}
    kinds, first = config.get("layer_types"), config.get("max_window_layers", 0)
    if kinds is not None:
        return {
            "sliding_window": window,
            "sliding_layers": tuple(i for i, x in enumerate(kinds) if x == "sliding_attention"),
        }
    if kind == "mistral":
        return {"sliding_window": window}
    layers = tuple(range(first, _field(config, "num_hidden_layers")))
    return {"sliding_window": window, "sliding_layers": layers}
