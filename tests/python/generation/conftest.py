# SPDX-License-Identifier: MIT
"""Small random models of Hugging Face's, and GGUF files with what a test asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY, CONTEXT = 101, 64
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
# Architectures, and the fields in which they differ.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_bias": ("Llama", {"attention_bias": True, "num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": 5, "head_dim": 24}),
    "qwen2": ("Qwen2", {
        "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1,
        "tie_word_embeddings": True,
    }),
    "qwen3": ("Qwen3", {"head_dim": 24, "num_key_value_heads": 1}),
}  # fmt: skip


def hugging_face(kind: str, **changes: Any) -> Any:
    """A model whose biases and norms are random too."""
    name, fields = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **fields, **changes})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            is_vector = parameter.dim() == 1
            parameter.normal_(std=0.2 if is_vector else 0.15).add_(1.0 if is_vector else 0.0)
    return model


def saved(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def prompt(batch: int = 2, length: int = 11) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch, length))
