# SPDX-License-Identifier: MIT
"""Tiny random models of Transformers, of every form that attention takes there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

VOCABULARY = 53
_COMMON = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    **_COMMON, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
_HEAD = {"head_dim": 8}
_LOCAL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
_WHISPER = {
    **_COMMON, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 8,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_source_positions": 8, "max_target_positions": 32,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip

# The class of the configuration, that of the model, and the configuration's arguments.
CAUSAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {
        **_COMMON, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    }),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _LLAMA),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {
        **_LLAMA, **_LOCAL, "use_sliding_window": True,
    }),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_LLAMA, **_HEAD}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_LLAMA, "sliding_window": 4}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", _LLAMA),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {
        **_LLAMA, **_HEAD, **_LOCAL, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8,
    }),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {
        **_LLAMA, **_HEAD, **_LOCAL, "query_pre_attn_scalar": 8,
    }),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {
        **_LLAMA, **_HEAD, **_LOCAL, "num_local_experts": 2, "num_experts_per_tok": 1,
    }),
    "opt": ("OPTConfig", "OPTForCausalLM", {
        **_COMMON, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    }),
}  # fmt: skip
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", {
        **_COMMON, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64,
    }),
    "t5": ("T5Config", "T5ForConditionalGeneration", {
        **_COMMON, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    }),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", _WHISPER),
}  # fmt: skip


def tiny(name: str, attention: str = "eager", **changes: Any) -> Any:
    """A model of random weights, the same ones at each call, which is in training mode."""
    config_name, model_name, arguments = (CAUSAL | OTHERS)[name]
    config = getattr(transformers, config_name)(**{**arguments, **changes})
    config._attn_implementation, config._experts_implementation = attention, "eager"
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(config)
    with torch.no_grad():  # initial weights are so small that attention would be a mean
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.5))
    return model.train()


@pytest.fixture(autouse=True)
def exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention of many models computes its softmax in float32, in which the mask of float64
    is infinite. Here float64 stays float64."""
    own = torch.nn.functional.softmax

    def softmax(x: Any, *arguments: Any, dtype: Any = None, **options: Any) -> Any:
        narrows = x.dtype is torch.float64 and dtype is torch.float32
        return own(x, *arguments, dtype=None if narrows else dtype, **options)

    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)
