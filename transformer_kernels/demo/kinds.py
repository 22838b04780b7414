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
    """A kind of model. ``build`` takes its size, its vocabulary, and whether it has our kernels."""

    title: str
    build: Callable[[Size, int, bool], Any]
    loss_of: Callable[[Any, Tensor], Tensor]  # of a batch of tokens (B, T)
    logits_of: Callable[[Any, Tensor], Tensor]


def _gpt2() -> Kind:
    """Hugging Face's GPT-2; importing it needs transformers."""
    import transformers

    from transformer_kernels.demo.gpt2 import put_in_kernels
    from transformer_kernels.demo.model import stock_model

    transformers.logging.set_verbosity_error()

    def build(size: Size, vocabulary: int, ours: bool) -> Any:
        dims = (size.layers, size.width, size.heads, size.block)
        model = stock_model(*dims, SEED, DROPOUT, vocabulary)
        return put_in_kernels(model) if ours else model

    return Kind(
        "GPT-2",
        build,
        lambda model, batch: model(input_ids=batch, labels=batch, use_cache=False).loss,
        lambda model, batch: model(input_ids=batch, use_cache=False).logits,
    )


def _language_model() -> Kind:
    """The language model of this package, whose kernels are a switch."""
    from transformer_kernels.models import LanguageModel, LanguageModelConfig

    def build(size: Size, vocabulary: int, ours: bool) -> Any:
        torch.manual_seed(SEED)
        config = LanguageModelConfig(
            vocab_size=vocabulary, context=size.block, dim=size.width, num_layers=size.layers,
            num_heads=size.heads, dropout=DROPOUT,
        )  # fmt: skip
        return LanguageModel(config, "ours" if ours else "torch")

    return Kind(
        "LanguageModel",
        build,
        lambda model, batch: model(batch[:, :-1], batch[:, 1:]),
        lambda model, batch: model(batch),
    )


KINDS: dict[str, Callable[[], Kind]] = {"gpt2": _gpt2, "language-model": _language_model}
