# SPDX-License-Identifier: MIT
"""Models of Hugging Face that `transformer-kernels race` runs: stock, compiled, fused, and with
Liger's kernels, with random weights from one seed. Building one needs transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench import training
from transformer_kernels.bench.console import Progress
from transformer_kernels.bench.rivals import liger_models
from transformer_kernels.bench.step import Task
from transformer_kernels.fuse import fuse

SEED = 0
DROPOUT = 0.1  # of the models that have it by default
PATCH = 16  # the side of an image's patches in pixels
LIGER = "liger"
PROVIDERS = ("stock", "compiled", "rewritten", "fused", LIGER)
GRAPHS = "fused, graphs"  # the fused model whose blocks are replayed as CUDA graphs


@dataclass(frozen=True)
class Size:
    """The dimensions of a model, and of the batch that it is given."""

    layers: int
    width: int
    heads: int
    inner: int  # of the MLP
    vocabulary: int  # or the labels of images
    batch: int
    tokens: int  # of an image: its patches and the class token
    key_heads: int = 0  # of keys and values; 0 is as many as heads
    head_dim: int = 0  # 0 is width / heads
    image: int = 0  # the side of square images in pixels; 0 is text

    def __str__(self) -> str:
        classes = f"{self.vocabulary} labels" if self.image else f"vocabulary {self.vocabulary}"
        return f"{self.layers} layers, width {self.width}, {self.heads} heads, {classes}"

    @property
    def batch_text(self) -> str:
        if self.image:
            return f"batch {self.batch}x{self.image}x{self.image} pixels"
        return f"batch {self.batch}x{self.tokens}"


Inputs = dict[str, Any]  # the arguments of a model's forward, by name


def _tokens(size: Size, device: torch.device) -> Inputs:
    ids = torch.randint(size.vocabulary, (size.batch, size.tokens), device=device)
    return {"input_ids": ids, "labels": ids}


def _sentences(size: Size, device: torch.device) -> Inputs:
    labels = torch.randint(2, (size.batch,), device=device)
    return {**_tokens(size, device), "labels": labels}


def _images(size: Size, device: torch.device) -> Inputs:
    pixels = torch.randn(size.batch, 3, size.image, size.image, device=device)
    labels = torch.randint(size.vocabulary, (size.batch,), device=device)
    return {"pixel_values": pixels, "labels": labels}


@dataclass(frozen=True)
class Family:
    """A model by its size; ``small`` fits a laptop, ``full`` is the size of a published model."""

    title: str
    kind: str  # the name of the architecture, Hugging Face's ``model_type``
    build: Callable[[Size], Any]
    small: Size
    full: Size
    dropout: float = 0.0
    inputs: Callable[[Size, torch.device], Inputs] = _tokens
    causal: bool = False  # whether a forward pass is asked for the last token's logits alone


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


def _bert_classifier(size: Size) -> Any:
    import transformers

    configure: Any = transformers.BertConfig
    return transformers.BertForSequenceClassification(configure(**_names(size)))


def _vit(size: Size) -> Any:
    import transformers

    configure: Any = transformers.ViTConfig
    return transformers.ViTForImageClassification(
        configure(
            **_dimensions(size), num_labels=size.vocabulary, image_size=size.image,
            patch_size=PATCH,
        )
    )  # fmt: skip


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
        **_dimensions(size),
    }  # fmt: skip


def _dimensions(size: Size) -> dict[str, int]:
    return {
        "hidden_size": size.width, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "intermediate_size": size.inner,
    }  # fmt: skip


def _keys(size: Size) -> dict[str, int]:
    return {
        "num_key_value_heads": size.key_heads or size.heads,
        "head_dim": size.head_dim or size.width // size.heads,
    }


_SMALL = Size(4, 256, 4, 1024, 8192, 8, 128)
_SMALL_GATED = Size(4, 256, 4, 704, 8192, 8, 128, key_heads=2)

FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "GPT-2", "gpt2", _gpt2, _SMALL,
        Size(12, 768, 12, 3072, 50257, 16, 1024), DROPOUT, causal=True,
    ),
    "gpt2-medium": Family(
        "GPT-2", "gpt2", _gpt2, _SMALL,
        Size(24, 1024, 16, 4096, 50257, 8, 1024), DROPOUT, causal=True,
    ),
    "bert": Family(
        "BERT", "bert", _bert, _SMALL,
        Size(24, 1024, 16, 4096, 30522, 32, 512), DROPOUT,
    ),
    "bert-base": Family(
        "BERT with a classifier", "bert", _bert_classifier, _SMALL,
        Size(12, 768, 12, 3072, 30522, 64, 128), DROPOUT, _sentences,
    ),
    "llama": Family(
        "Llama", "llama", _llama, _SMALL_GATED,
        Size(16, 2048, 32, 8192, 128256, 4, 2048, key_heads=8), causal=True,
    ),
    "qwen3": Family(
        "Qwen3", "qwen3", _qwen3, _SMALL_GATED,
        Size(28, 1024, 16, 3072, 151936, 4, 2048, key_heads=8, head_dim=128), causal=True,
    ),
    "vit": Family(
        "ViT", "vit", _vit, Size(4, 256, 4, 1024, 1000, 8, 197, image=224),
        Size(24, 1024, 16, 4096, 1000, 64, 197, image=224), inputs=_images,
    ),
}  # fmt: skip


def loss_of(model: Any, batch: Inputs) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def first_logit(model: Any, batch: Inputs) -> Tensor:
    """A number of the answer, for which a step waits as training does for its loss."""
    logits: Tensor = model(**batch).logits
    return logits.flatten()[0]


def task(
    family: Family,
    size: Size,
    providers: Sequence[str],
    device: torch.device,
    options: Mapping[str, Any],
    trains: bool = True,
    dtype: torch.dtype = torch.float32,
    quiet: bool = True,
) -> Task:
    """The models of these providers with parameters of ``dtype``, on one random batch; float32
    trains under autocast. ``rewritten`` is compiled with this package's backend; ``options`` are
    those of ``fuse``."""
    torch.manual_seed(SEED)
    batch = {
        name: x.to(dtype) if x.is_floating_point() else x
        for name, x in family.inputs(size, device).items()
    }
    if not trains:
        del batch["labels"]
        batch |= {"logits_to_keep": 1} if family.causal else {}

    def made(provider: str) -> Any:
        torch.manual_seed(SEED)
        model = family.build(size).to(device, dtype).train(trains)
        model.config.use_cache = False  # which neither a step nor a single pass would read
        if provider == "rewritten":
            return torch.compile(model, backend="transformer_kernels")
        if provider == "compiled":
            return torch.compile(model)
        if provider in ("fused", GRAPHS):
            fuse(model, batch, graphs=provider == GRAPHS, **options)
        if provider == LIGER:
            liger_models.put_in(model)
        return model

    models = {}
    with Progress("preparing", len(providers), quiet) as progress:
        for provider in providers:
            models[provider] = made(provider)
            progress.advance(provider)
    recipe = training.Recipe(
        steps=100, learning_rate=3e-4, trains=trains, autocast=trains and dtype == torch.float32
    )
    return Task(models, batch, loss_of if trains else first_logit, recipe, size.tokens)
