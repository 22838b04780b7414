# SPDX-License-Identifier: MIT
"""Models that nobody here wrote, two layers each: how each is built, and its inputs.

A family is one row of a table. Weights come from a seed and are no initialiser's: a norm whose
weights are 1 computes the same as a norm without any.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, CLASSES = 97, 64, 10
IMAGE, MELS, FRAMES = 32, 16, 32
BATCH, TOKENS = 2, 40

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A model and what may be asked of it."""

    name: str
    kind: str  # of its inputs, a key of INPUTS
    make: Callable[[float], nn.Module]  # takes the rate of dropout
    dropout: bool = True  # whether it has any
    kinks: bool = False  # whether a slope or a choice of experts jumps, as relu's slope does

    def __str__(self) -> str:
        return self.name

    @property
    def library(self) -> str:
        return self.make.func.__name__.strip("_")

    def build(self, dropout: float = 0.0, seed: int = 0) -> nn.Module:
        """The model in evaluation, with the same weights each time."""
        torch.manual_seed(seed)
        model = self.make(dropout)
        randomise(model)
        return model.eval()

    def inputs(self, batch: int = BATCH, tokens: int = TOKENS, seed: int = 1) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        return INPUTS[self.kind](generator, batch, tokens)


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    for name, x in model.named_parameters():
        if "A_log" in name or "dt_proj" in name:  # a state-space model is stable by these
            continue
        if x.dim() < 2:
            x.add_(0.2 * torch.randn_like(x))
        else:
            x.copy_(torch.randn_like(x) / x.shape[-1] ** 0.5)


# ---- inputs -------------------------------------------------------------------------------------


def tokens_of(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=generator)


def labels_of(ids: Tensor) -> Tensor:
    labels = ids.clone()
    labels[:, :3] = -100
    return labels


def causal(generator: torch.Generator, batch: int, tokens: int) -> Inputs:
    ids = tokens_of(generator, batch, tokens)
    return {"input_ids": ids, "labels": labels_of(ids)}


def translation(generator: torch.Generator, batch: int, tokens: int) -> Inputs:
    ids = tokens_of(generator, batch, tokens)
    return {"input_ids": ids, "labels": labels_of(tokens_of(generator, batch, tokens - 5))}


def speech(generator: torch.Generator, batch: int, tokens: int) -> Inputs:
    return {
        "input_features": torch.randn(batch, MELS, 2 * FRAMES, generator=generator),
        "labels": labels_of(tokens_of(generator, batch, tokens - 5)),
    }


def image_of(generator: torch.Generator, batch: int) -> Tensor:
    return torch.randn(batch, 3, IMAGE, IMAGE, generator=generator)


def vision(generator: torch.Generator, batch: int, _tokens: int) -> Inputs:
    labels = torch.randint(0, CLASSES, (batch,), generator=generator)
    return {"pixel_values": image_of(generator, batch), "labels": labels}


def image(generator: torch.Generator, batch: int, _tokens: int) -> Inputs:
    return {"x": image_of(generator, batch)}


def encoder(generator: torch.Generator, batch: int, tokens: int) -> Inputs:
    return {"src": torch.randn(batch, tokens, WIDTH, generator=generator)}


def decoder(generator: torch.Generator, batch: int, tokens: int) -> Inputs:
    return {
        "tgt": torch.randn(batch, tokens, WIDTH, generator=generator),
        "memory": torch.randn(batch, tokens - 5, WIDTH, generator=generator),
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(tokens),
        "tgt_is_causal": True,
    }


INPUTS: dict[str, Callable[[torch.Generator, int, int], Inputs]] = {
    "causal": causal, "masked": causal, "translation": translation, "speech": speech,
    "vision": vision, "image": image, "encoder": encoder, "decoder": decoder,
}  # fmt: skip


# ---- libraries ----------------------------------------------------------------------------------

SIZES = {
    "hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SPEECH = {
    "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "vocab_size": VOCABULARY, "num_mel_bins": MELS, "max_source_positions": FRAMES,
    "max_target_positions": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "begin_suppress_tokens": None, "suppress_tokens": None,
}  # fmt: skip


def _transformers(model: str, config: str, options: Inputs, dropout: float) -> nn.Module:
    library = importlib.import_module("transformers")
    settings = getattr(library, config)(**options)
    for name, value in vars(settings).items():
        if "drop" in name and isinstance(value, (int, float)) and "layerdrop" not in name:
            setattr(settings, name, dropout)
    return getattr(library, model)(settings)


def _timm(module: str, model: str, options: Inputs, dropout: float) -> nn.Module:
    if not _has_timm():
        pytest.skip("timm is not installed")
    rates = {"proj_drop_rate": dropout, "attn_drop_rate": dropout, "drop_path_rate": 0.0}
    return getattr(importlib.import_module(f"timm.models.{module}"), model)(**options, **rates)


@functools.cache
def _has_timm() -> bool:
    from .stand_in import import_timm

    return import_timm()


def _torch(stack: str, layer: str, dropout: float) -> nn.Module:
    one = getattr(nn, layer)(WIDTH, 4, 128, dropout=dropout, batch_first=True, activation="gelu")
    return getattr(nn, stack)(one, 2)


def transformers_family(name: str, kind: str, model: str, **options: Any) -> Family:
    traits = {name: options.pop(name) for name in ("dropout", "kinks") if name in options}
    config = options.pop("config", None) or _config_of(model)
    return Family(name, kind, functools.partial(_transformers, model, config, options), **traits)


def _config_of(model: str) -> str:
    for ending in ("ForCausalLM", "ForMaskedLM", "LMHeadModel", "ForConditionalGeneration",
                   "ForImageClassification"):  # fmt: skip
        model = model.removesuffix(ending)
    return f"{model}Config"


SMALL_IMAGE = {"img_size": IMAGE, "num_classes": CLASSES}
TIMM_VIT = {**SMALL_IMAGE, "patch_size": 8, "embed_dim": WIDTH, "depth": 2, "num_heads": 4}

FAMILIES = (
    transformers_family("gpt2", "causal", "GPT2LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=4,
                        n_positions=128, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2,
                        pad_token_id=0),
    transformers_family("bert", "masked", "BertForMaskedLM", **SIZES),
    transformers_family("roberta", "masked", "RobertaForMaskedLM", **SIZES),
    transformers_family("llama", "causal", "LlamaForCausalLM", **GROUPED),
    transformers_family("qwen2", "causal", "Qwen2ForCausalLM", **GROUPED),
    transformers_family("qwen3", "causal", "Qwen3ForCausalLM", head_dim=16, **GROUPED),
    transformers_family("mistral", "causal", "MistralForCausalLM", sliding_window=24, **GROUPED),
    transformers_family("gemma2", "causal", "Gemma2ForCausalLM", head_dim=16,
                        query_pre_attn_scalar=16, sliding_window=24, **GROUPED),
    transformers_family("gemma3", "causal", "Gemma3ForCausalLM", config="Gemma3TextConfig",
                        head_dim=16, query_pre_attn_scalar=16, sliding_window=24,
                        layer_types=["sliding_attention", "full_attention"], **GROUPED),
    transformers_family("phi3", "causal", "Phi3ForCausalLM", **GROUPED),
    transformers_family("opt", "causal", "OPTForCausalLM", kinks=True, hidden_size=WIDTH,
                        ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
                        vocab_size=VOCABULARY, max_position_embeddings=128,
                        word_embed_proj_dim=WIDTH, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    transformers_family("gpt-neox", "causal", "GPTNeoXForCausalLM", **SIZES),
    transformers_family("falcon", "causal", "FalconForCausalLM", ffn_hidden_size=128,
                        **{k: v for k, v in SIZES.items() if k != "intermediate_size"}),
    transformers_family("falcon alibi", "causal", "FalconForCausalLM", ffn_hidden_size=128,
                        alibi=True, parallel_attn=False, multi_query=False,
                        **{k: v for k, v in SIZES.items() if k != "intermediate_size"}),
    transformers_family("t5", "translation", "T5ForConditionalGeneration", kinks=True,
                        d_model=WIDTH, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                        vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0,
                        eos_token_id=2),
    transformers_family("whisper", "speech", "WhisperForConditionalGeneration", **SPEECH),
    transformers_family("vit", "vision", "ViTForImageClassification", image_size=IMAGE,
                        patch_size=8, num_labels=CLASSES, hidden_size=WIDTH, num_hidden_layers=2,
                        num_attention_heads=4, intermediate_size=128),
    transformers_family("mixtral", "causal", "MixtralForCausalLM", kinks=True, num_local_experts=4,
                        num_experts_per_tok=2, **GROUPED),
    transformers_family("qwen3-moe", "causal", "Qwen3MoeForCausalLM", kinks=True, head_dim=16,
                        **EXPERTS),
    transformers_family("mamba", "causal", "MambaForCausalLM", dropout=False, hidden_size=WIDTH,
                        state_size=8, num_hidden_layers=2, vocab_size=VOCABULARY, pad_token_id=0,
                        bos_token_id=1, eos_token_id=2),
    Family("timm vit", "image", functools.partial(
        _timm, "vision_transformer", "VisionTransformer", TIMM_VIT)),
    Family("timm deit3", "image", functools.partial(
        _timm, "vision_transformer", "VisionTransformer",
        {**TIMM_VIT, "no_embed_class": True, "init_values": 1e-6})),
    Family("timm swin", "image", functools.partial(
        _timm, "swin_transformer", "SwinTransformer",
        {**SMALL_IMAGE, "patch_size": 4, "window_size": 4, "embed_dim": 32, "depths": (2, 2),
         "num_heads": (2, 4)})),
    Family("nn encoder", "encoder", functools.partial(
        _torch, "TransformerEncoder", "TransformerEncoderLayer")),
    Family("nn decoder", "decoder", functools.partial(
        _torch, "TransformerDecoder", "TransformerDecoderLayer")),
)  # fmt: skip

# The least that is found in a family, by pattern.
_DECODER = {"norm": 5, "sum_norm": 4, "attention": 2, "rope": 2, "siblings": 2, "loss": 1}
_GATED = {**_DECODER, "gated_mlp": 2}
LEAST = {
    "gpt2": {"norm": 5, "sum_norm": 4, "attention": 2, "mlp": 2, "loss": 1},
    "bert": {"norm": 6, "sum_norm": 4, "attention": 2, "linear_act": 2, "siblings": 2},
    "roberta": {"norm": 6, "sum_norm": 5, "attention": 2, "linear_act": 2, "siblings": 2},
    "llama": _GATED,
    "qwen2": _GATED,
    "qwen3": {**_GATED, "norm": 9, "qk_norm": 2},
    "mistral": _GATED,
    "gemma2": {"norm": 9, "sum_norm": 4, "gated_mlp": 2, "eager_attention": 2, "rope": 2,
               "siblings": 2, "loss": 1},
    "gemma3": {**_GATED, "norm": 13, "qk_norm": 2},
    "phi3": {"norm": 5, "sum_norm": 4, "attention": 2, "rope": 2, "gated_mlp": 2, "loss": 1},
    "opt": {"norm": 5, "sum_norm": 1, "attention": 2, "activation": 2, "linear_then_act": 2,
            "siblings": 2, "loss": 1},
    "gpt-neox": {"norm": 5, "sum_norm": 2, "attention": 2, "rope": 2, "mlp": 2, "loss": 1},
    "falcon": {"norm": 3, "sum_norm": 2, "attention": 2, "rope": 2, "activation": 2, "loss": 1},
    "falcon alibi": {"norm": 5, "sum_norm": 4, "activation": 2, "loss": 1},
    "t5": {"norm": 12, "sum_norm": 10, "attention": 6, "mlp": 4, "siblings": 6},
    "whisper": {"norm": 12, "sum_norm": 11, "attention": 6, "activation": 4, "linear_then_act": 4,
                "siblings": 6},
    "vit": {"norm": 5, "sum_norm": 2, "attention": 2, "mlp": 2, "siblings": 2},
    "mixtral": {**_DECODER, "experts": 2},
    "qwen3-moe": {**_DECODER, "norm": 9, "qk_norm": 2, "experts": 2},
    "mamba": {"norm": 3, "sum_norm": 2, "loss": 1},
    "timm vit": {"norm": 5, "sum_norm": 4, "attention": 2, "mlp": 2},
    "timm deit3": {"norm": 5, "sum_norm": 4, "attention": 2, "mlp": 2},
    "timm swin": {"norm": 11, "mlp": 4},
    "nn encoder": {"norm": 4, "sum_norm": 3, "attention": 2, "linear_then_act": 2},
    "nn decoder": {"norm": 6, "sum_norm": 6, "attention": 4, "linear_then_act": 2},
}  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}
