# SPDX-License-Identifier: MIT
"""The models that the demo trains, each stock and with our kernels from the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.demo.size import Size

SEED = 0
DROPOUT = 0.1  # GPT-2's


@dataclass(frozen=True)
class Kind:
    """A kind of model. ``build`` takes its size and its vocabulary, and makes it stock;
    ``put_in`` puts our kernels into one on its device, and takes a batch of its steps."""

    title: str
    build: Callable[[Size, int], Any]
    put_in: Callable[[Any, Tensor], None]
    loss_of: Callable[[Any, Tensor], Tensor]  # of a batch of tokens (B, T)
    logits_of: Callable[[Any, Tensor], Tensor]


def _gpt2() -> Kind:
    """Hugging Face's GPT-2; importing it needs transformers."""
    import transformers

    from transformer_kernels.demo.model import stock_model
    from transformer_kernels.fuse import fuse

    transformers.logging.set_verbosity_error()

    def build(size: Size, vocabulary: int) -> Any:
        dims = (size.layers, size.width, size.heads, size.block)
        return stock_model(*dims, SEED, DROPOUT, vocabulary)

    def put_in(model: Any, batch: Tensor) -> None:
        fuse(model, {"input_ids": batch, "labels": batch}, skip_logits=True)

    return Kind(
        "GPT-2",
        build,
        put_in,
        lambda model, batch: model(input_ids=batch, labels=batch, use_cache=False).loss,
        lambda model, batch: model(input_ids=batch, use_cache=False).logits,
    )


def _mixtral() -> Kind:
    """Hugging Face's Mixtral, a mixture of experts; importing it needs transformers."""
    import transformers

    from transformer_kernels.fuse import fuse

    transformers.logging.set_verbosity_error()

    def build(size: Size, vocabulary: int) -> Any:
        torch.manual_seed(SEED)
        configure: Any = transformers.MixtralConfig  # typed in part only
        config = configure(
            vocab_size=vocabulary, hidden_size=size.width, intermediate_size=2 * size.width,
            num_hidden_layers=size.layers, num_attention_heads=size.heads,
            num_key_value_heads=size.heads, max_position_embeddings=size.block,
            num_local_experts=size.experts, num_experts_per_tok=size.top_k,
            output_router_logits=True, router_aux_loss_coef=0.02,
        )  # fmt: skip
        return transformers.MixtralForCausalLM(config)

    def put_in(model: Any, batch: Tensor) -> None:
        fuse(model, {"input_ids": batch, "labels": batch})

    return Kind(
        "Mixtral",
        build,
        put_in,
        lambda model, batch: model(input_ids=batch, labels=batch, use_cache=False).loss,
        lambda model, batch: model(input_ids=batch, use_cache=False).logits,
    )


def _language_model() -> Kind:
    """The language model of this package, whose kernels are a switch."""
    from transformer_kernels.models import LanguageModel, LanguageModelConfig

    def build(size: Size, vocabulary: int) -> Any:
        torch.manual_seed(SEED)
        config = LanguageModelConfig(
            vocab_size=vocabulary, context=size.block, dim=size.width, num_layers=size.layers,
            num_heads=size.heads, dropout=DROPOUT,
        )  # fmt: skip
        return LanguageModel(config, "torch")

    def put_in(model: Any, batch: Tensor) -> None:  # noqa: ARG001
        model.kernels = "ours"

    return Kind(
        "LanguageModel",
        build,
        put_in,
        lambda model, batch: model(batch[:, :-1], batch[:, 1:]),
        lambda model, batch: model(batch),
    )


KINDS: dict[str, Callable[[], Kind]] = {
    "gpt2": _gpt2,
    "language-model": _language_model,
    "mixtral": _mixtral,
}
