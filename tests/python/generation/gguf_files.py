# SPDX-License-Identifier: MIT
"""GGUF files of small random models, written by the package gguf."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# The names of a layer's weights in a file, and in transformers.
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
OUTSIDE = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
}  # fmt: skip
TEXT = [
    "<|im_start|>", "<|im_end|>", *(chr(code) for code in range(33, 127)), "\u0120", "\u010a",
    "ab", "abc", "\u0120a",
]  # fmt: skip
MERGES = ["a b", "ab c", "\u0120 a"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\n' }}"
)
BY_GGUF = ("Q8_0", "Q4_0", "Q4_1", "Q5_0")  # formats that the package writes


def random_rows(name: str, rows: int, terms: int, generator: np.random.Generator) -> np.ndarray:
    """Bytes of random numbers in a format; its scales are of the size of trained weights'."""
    kind = gguf.GGMLQuantizationType[name]
    if name in BY_GGUF:
        numbers = generator.normal(0, 0.15, (rows, terms)).astype(np.float32)
        return gguf.quantize(numbers, kind)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows, terms // numbers, size), dtype=np.uint8)
    factors = generator.uniform(2e-4, 8e-4, blocks.shape[:2])
    places = {"Q4_K": {0: 1, 2: 7.5}, "Q6_K": {208: 0.1}}[name]  # so that numbers are about 0
    for place, times in places.items():
        halves = (times * factors).astype(np.float16)
        blocks[..., place : place + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of halves in the order of neighbouring pairs, as llama.cpp converts Llama's weights."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def write(
    path: Path,
    model: Any,
    formats: dict[str, str] | None = None,
    architecture: str = "llama",
    metadata: dict[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Writes a model of transformers'. ``formats`` says in which format the tensors whose names end
    so are; others are F32. Returns what the file means, under transformers' names."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TEXT)
    writer.add_token_types([3, 3, *([1] * (len(TEXT) - 2))])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    means, state = {}, model.state_dict()
    for name, theirs in _names(config.num_hidden_layers).items():
        for leaf in ("weight", "bias"):
            if f"{theirs}.{leaf}" not in state or (name == "output" and config.tie_word_embeddings):
                continue
            numbers = state[f"{theirs}.{leaf}"].float().numpy()
            means[f"{theirs}.{leaf}"] = _add(
                writer, f"{name}.{leaf}", numbers, _format(f"{name}.{leaf}", formats or {}),
                _heads(name, config) if architecture == "llama" else None,
            )  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return means


def _names(layers: int) -> dict[str, str]:
    inside = {
        f"blk.{i}.{name}": f"model.layers.{i}.{theirs}"
        for i in range(layers)
        for name, theirs in LAYER.items()
    }
    return {**inside, **OUTSIDE}


def _format(name: str, formats: dict[str, str]) -> str:
    return next((kind for end, kind in formats.items() if name.endswith(end)), "F32")


def _heads(name: str, config: Any) -> int | None:
    counts = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    return counts.get(name.rpartition(".")[2])


def _add(
    writer: Any, name: str, numbers: np.ndarray, format_: str, heads: int | None
) -> np.ndarray:
    """Adds a tensor in a format, its rows in llama.cpp's order; returns the numbers it stands for,
    in the order of transformers."""
    kind = gguf.GGMLQuantizationType[format_]
    if format_ in ("F32", "F16"):
        stored = numbers.astype({"F32": np.float32, "F16": np.float16}[format_])
    elif format_ == "BF16" or format_ in BY_GGUF:
        stored = gguf.quantize(numbers, kind)
    else:
        seed = zlib.crc32(numbers.tobytes())
        stored = random_rows(format_, *numbers.shape, np.random.default_rng(seed))
    meaning = stored.astype(np.float32) if format_ in ("F32", "F16") else gguf.dequantize(
        stored, kind
    )  # fmt: skip
    writer.add_tensor(name, stored if heads is None else permuted(stored, heads), raw_dtype=kind)
    return meaning
