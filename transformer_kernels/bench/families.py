# SPDX-License-Identifier: MIT
"""Models of Hugging Face that `transformer-kernels race` trains: stock, compiled and fused, with
random weights from one seed. Building one needs transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench import training
from transformer_kernels.bench.step import Task
from transformer_kernels.fuse import fuse

SEED = 0
DROPOUT = 0.1  # of the models that have it by default
PROVIDERS = ("stock", "compiled", "rewritten", "fused")
GRAPHS = "fused, graphs"  # the fused model whose blocks are replayed as CUDA graphs


@dataclass(frozen=True)
class Size:
    """The dimensions of a model, and of the batch that it is trained on."""

    layers: int
    width: int
    heads: int
    inner: int  # of the MLP
    vocabulary: int
    batch: int
    tokens: int
    key_heads: int = 0  # of keys and values; 0 is as many as heads
    head_dim: int = 0  # 0 is width / heads

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, width {self.width}, {self.heads} heads, vocabulary"
            f" {self.vocabulary}"
        )


@dataclass(frozen=True)
class Family:
    """A model by its size; ``small`` fits a laptop, ``full`` is the size of a published model."""

    title: str
    build: Callable[[Size], Any]
    small: Size
    full: Size
    dropout: float = 0.0


def _gpt2(size: Size) -> Any:
    import transformers

    configure: Any = transformers.GPT2Config  # typed in part only, as those below are
    return transformers.GPT2LMHeadModel(
        configure(
            vocab_size=size.vocabulary, n_positions=size.tokens, n_embd=size.width,
            n_layer=size.layers, n_head=size.heads, n_inner=size.inner, bos_token_id=0,
            eos_token_id=0,
        )
    )  # fmt: skip


def _bert(size: Size) -> Any:
    import transformers

    configure: Any = transformers.BertConfig
    return transformers.BertForMaskedLM(configure(**_names(size)))


def _llama(size: Size) -> Any:
    import transformers

    configure: Any = transformers.LlamaConfig
    return transformers.LlamaForCausalLM(configure(**_names(size), **_keys(size)))


def _qwen3(size: Size) -> Any:
    import transformers

    configure: Any = transformers.Qwen3Config
    return transformers.Qwen3ForCausalLM(
        configure(**_names(size), **_keys(size), tie_word_embeddings=True)
    )


def _names(size: Size) -> dict[str, int]:
    return {
        "vocab_size": size.vocabulary, "max_position_embeddings": size.tokens,
        "hidden_size": size.width, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "intermediate_size": size.inner,
    }  # fmt: skip


def _keys(size: Size) -> dict[str, int]:
    return {
        "num_key_value_heads": size.key_heads or size.heads,
        "head_dim": size.head_dim or size.width // size.heads,
    }


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "GPT-2", _gpt2, Size(4, 256, 4, 1024, 8192, 8, 128),
        Size(12, 768, 12, 3072, 50257, 16, 1024), DROPOUT,
    ),
    "bert": Family(
        "BERT", _bert, Size(4, 256, 4, 1024, 8192, 8, 128),
        Size(24, 1024, 16, 4096, 30522, 32, 512), DROPOUT,
    ),
    "llama": Family(
        "Llama", _llama, Size(4, 256, 4, 704, 8192, 8, 128, key_heads=2),
        Size(16, 2048, 32, 8192, 128256, 4, 2048, key_heads=8),
    ),
    "qwen3": Family(
        "Qwen3", _qwen3, Size(4, 256, 4, 704, 8192, 8, 128, key_heads=2),
        Size(28, 1024, 16, 3072, 151936, 4, 2048, key_heads=8, head_dim=128),
    ),
}  # fmt: skip


def loss_of(model: Any, batch: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=batch, labels=batch).loss
    return loss


def task(
    family: Family,
    size: Size,
    providers: Sequence[str],
    device: torch.device,
    options: Mapping[str, Any],
) -> Task:
    """The models of these providers, on one batch of random tokens. ``rewritten`` is compiled with
    this package's backend; ``options`` are those of ``fuse``."""
    torch.manual_seed(SEED)
    batch = torch.randint(size.vocabulary, (size.batch, size.tokens), device=device)

    def made(provider: str) -> Any:
        torch.manual_seed(SEED)
        model = family.build(size).to(device).train()
        model.config.use_cache = False  # which a step of training would fill for nobody
        if provider == "rewritten":
            return torch.compile(model, backend="transformer_kernels")
        if provider == "compiled":
            return torch.compile(model)
        if provider in ("fused", GRAPHS):
            inputs = {"input_ids": batch, "labels": batch}
            fuse(model, inputs, graphs=provider == GRAPHS, **options)
        return model

    recipe = training.Recipe(steps=100, learning_rate=3e-4)
    models = {provider: made(provider) for provider in providers}
    return Task(models, batch, loss_of, recipe, size.tokens)
