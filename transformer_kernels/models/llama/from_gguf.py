# SPDX-License-Identifier: MIT
"""A Llama from a GGUF file: its configuration from the metadata, and its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .blocks import Blocks, blocks_of, widened
from .config import LlamaConfig
from .gguf_file import GGUFFile, Stored
from .packed import PackedEmbedding, linear_of

# The architectures, and whether their rotation pairs neighbours. Rows of queries and keys are then
# put in the order of Hugging Face, which pairs the halves of a head.
_ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}
_EMBEDDING, _HEAD, _FACTORS = "token_embd", "output", "rope_freqs.weight"
_OUTSIDE = {_EMBEDDING: "model.embed_tokens", "output_norm": "model.norm", _HEAD: "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fill(model: Any, file: GGUFFile, dtype: torch.dtype, device: Any, packed: bool) -> None:
    """Gives a Llama without numbers the weights of the file."""
    config = model.config
    heads = _rotated_heads(file, config)
    for name, ours in _modules(config).items():
        if name == _HEAD and config.tie_weights:
            continue
        module = model.get_submodule(ours)
        stored = _stored(file, f"{name}.weight", tuple(module.weight.shape))
        order = _order(heads.get(name.rpartition(".")[2]), config)
        bias = getattr(module, "bias", None)
        if bias is not None:
            numbers = widened(_stored(file, f"{name}.bias", tuple(bias.shape)))
            bias = _parameter(numbers if order is None else numbers[order], dtype, device)
        blocks = blocks_of(stored) if packed and not isinstance(module, nn.Embedding) else None
        if blocks is not None:
            _replace(model, ours, linear_of(_ordered(blocks, order), bias).to(device))
            continue
        numbers = widened(stored)
        module.weight = _parameter(numbers if order is None else numbers[order], dtype, device)
        if bias is not None:
            module.bias = bias
    _embed(model, file, dtype, device, packed)


def config_of(file: GGUFFile) -> LlamaConfig:
    """Reads the configuration from the metadata, and from what tensors there are."""
    kind = file.get("general.architecture", str)
    if kind not in _ARCHITECTURES:
        raise file.error(
            f"general.architecture is {kind!r}, expected one of {', '.join(_ARCHITECTURES)}"
        )

    def count(key: str) -> int:
        return int(file.get(f"{kind}.{key}", int))

    def number(key: str, default: float) -> float:
        whole = f"{kind}.{key}"
        return float(file.get(whole, (int, float))) if whole in file.metadata else default

    heads, layers = count("attention.head_count"), count("block_count")
    last = f"blk.{layers - 1}.attn_norm.weight"
    if layers > 0 and last not in file.tensors:  # before millions of layers are made
        raise file.error(f"it has no tensor {last}")
    if _EMBEDDING + ".weight" not in file.tensors or len(_shape(file)) != 2:
        raise file.error(f"it has no table {_EMBEDDING}.weight")
    factors = file.tensors.get(_FACTORS)
    _refuse_scaling(file, kind)
    try:
        return LlamaConfig(
            vocab_size=_shape(file)[0],
            context=count("context_length"),
            dim=count("embedding_length"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=int(number("attention.head_count_kv", heads)),
            head_dim=int(number("attention.key_length", 0)) or None,
            inner_dim=count("feed_forward_length"),
            eps=number("attention.layer_norm_rms_epsilon", 1e-5),
            rope_base=number("rope.freq_base", 10000.0),
            rope_scaling=_scaling(number("rope.scaling.factor", 0.0)),
            rope_factors=None if factors is None else tuple(widened(factors).tolist()),
            qkv_bias="blk.0.attn_q.bias" in file.tensors,
            out_bias="blk.0.attn_output.bias" in file.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
            tie_weights=f"{_HEAD}.weight" not in file.tensors,
            sliding_window=int(number("attention.sliding_window", 0)) or None,
        )
    except (ValueError, TypeError) as error:
        raise file.error(str(error)) from None


def _shape(file: GGUFFile) -> tuple[int, ...]:
    return file.tensors[f"{_EMBEDDING}.weight"].shape


def _scaling(factor: float) -> dict[str, Any] | None:
    return {"rope_type": "linear", "factor": factor} if factor else None


def _refuse_scaling(file: GGUFFile, kind: str) -> None:
    scaling = file.metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise file.error(f"{kind}.rope.scaling.type is {scaling!r}, expected 'none' or 'linear'")
    rotated = file.metadata.get(f"{kind}.rope.dimension_count")
    heads = file.metadata.get(f"{kind}.attention.head_count")
    width = file.metadata.get(f"{kind}.embedding_length")
    if rotated is None or not isinstance(heads, int) or not isinstance(width, int) or not heads:
        return
    head_dim = file.metadata.get(f"{kind}.attention.key_length", width // heads)
    if rotated != head_dim:
        raise file.error(
            f"{kind}.rope.dimension_count is {rotated}, expected {head_dim} (all of a head)"
        )


def _modules(config: LlamaConfig) -> dict[str, str]:
    """The modules with weights, but for the embedding, by their names in the file."""
    left_out = () if config.qk_norm else ("attn_q_norm", "attn_k_norm")
    inside = {
        f"blk.{i}.{name}": f"model.layers.{i}.{ours}"
        for i in range(config.num_layers)
        for name, ours in _IN_LAYER.items()
        if name not in left_out
    }
    return inside | {name: ours for name, ours in _OUTSIDE.items() if name != _EMBEDDING}


def _stored(file: GGUFFile, name: str, shape: tuple[int, ...]) -> Stored:
    if name not in file.tensors:
        raise file.error(f"it has no tensor {name}")
    stored = file.tensors[name]
    if stored.shape != shape:
        raise file.error(f"{name} has shape {stored.shape}, expected {shape}")
    return stored


def _rotated_heads(file: GGUFFile, config: LlamaConfig) -> dict[str, int]:
    """The projections whose rows are in the order of neighbouring pairs, with their heads."""
    if not _ARCHITECTURES[file.metadata["general.architecture"]]:
        return {}
    return {"attn_q": config.num_heads, "attn_k": config.kv_heads}


def _order(heads: int | None, config: LlamaConfig) -> Tensor | None:
    """The order in which rows of neighbouring pairs are rows of halves."""
    if heads is None:
        return None
    rows = torch.arange(heads * config.width).view(heads, config.width // 2, 2)
    return rows.transpose(1, 2).flatten()


def _ordered(blocks: Blocks, order: Tensor | None) -> Blocks:
    if order is None:
        return blocks
    offsets = None if blocks.offsets is None else blocks.offsets[order]
    return Blocks(blocks.bits, blocks.numbers[order], blocks.scales[order], offsets)


def _parameter(numbers: Tensor, dtype: torch.dtype, device: Any) -> nn.Parameter:
    """A parameter of its own memory: the file's pages may be shared."""
    return nn.Parameter(numbers.to(device=device, dtype=dtype, copy=True))


def _replace(model: Any, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def _embed(model: Any, file: GGUFFile, dtype: torch.dtype, device: Any, packed: bool) -> None:
    """Gives the model its table of tokens, and its head the same where the file has no other."""
    config = model.config
    stored = _stored(file, f"{_EMBEDDING}.weight", (config.vocab_size, config.dim))
    blocks = blocks_of(stored) if packed else None
    if blocks is not None:
        layer = linear_of(blocks, None).to(device)
        _replace(model, "model.embed_tokens", PackedEmbedding(layer, dtype))
        if config.tie_weights:
            model.lm_head = layer
        return
    model.model.embed_tokens.weight = _parameter(widened(stored), dtype, device)
    if config.tie_weights:
        model.lm_head.weight = model.model.embed_tokens.weight
