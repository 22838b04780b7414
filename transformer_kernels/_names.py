# SPDX-License-Identifier: MIT
"""Answers a call with an argument that is none: by the names that other libraries give to what the
function takes.

    attention: softmax_scale is not an argument, expected scale (did you mean scale=?)
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

from ._errors import ArgumentTypeError

Class = TypeVar("Class", bound=type)


class _Absent:
    """The default of a required argument. PyTorch takes it for a tensor with overloads, so the
    check that each call makes for these also finds what is missing."""

    def __repr__(self) -> str:
        return "ABSENT"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        return NotImplemented


ABSENT: Final = _Absent()

# For each name of PyTorch, Hugging Face, Liger Kernel, flash-attn, xFormers, Apex or Transformer
# Engine what it may be called here: a name, or how that is written. Every one that the called
# function takes is offered.
_OURS: dict[str, tuple[str, ...]] = {
    # operands
    "query": ("q",),
    "key": ("k",),
    "value": ("v",),
    "query_states": ("q",),
    "key_states": ("k",),
    "value_states": ("v",),
    "X": ("input", "x", "q"),
    "x": ("input", "gate", "q"),
    "inp": ("input", "x"),
    "inputs": ("input", "x"),
    "input": ("x", "tokens", "logits"),
    "_input": ("input",),
    "hidden_states": ("input", "x"),
    "hidden": ("input", "x"),
    "R": ("residual",),
    "a": ("gate",),
    "b": ("up",),
    "input_ids": ("tokens", "input"),
    "labels": ("target", "tokens"),
    "targets": ("target",),
    "target": ("tokens",),
    "logits": ("input",),
    "edge_index": ("graph=Graph.from_edges(edge_index, num_nodes)",),
    # weights
    "W": ("weight",),
    "w": ("weight",),
    "B": ("bias",),
    "gamma": ("weight",),
    "beta": ("bias",),
    "lin_weight": ("linear_weight",),
    "ce_weight": ("weight",),
    "bias": ("linear_bias",),
    "w1": ("weight",),
    "b1": ("bias",),
    "w2": ("up_weight", "down_weight"),
    "b2": ("up_bias", "down_bias"),
    "w3": ("down_weight",),
    "b3": ("down_bias",),
    "gate_weight": ("weight",),
    "gate_proj": ("weight",),
    "up_proj": ("up_weight",),
    "down_proj": ("down_weight",),
    # attention
    "softmax_scale": ("scale",),
    "sm_scale": ("scale",),
    "scaling": ("scale",),
    "is_causal": ("causal",),
    "attn_mask_type": ("causal=True",),
    "window_size": ("window",),
    "sliding_window": ("window",),
    "attn_mask": ("mask= of booleans", "bias= of numbers"),
    "attention_mask": ("mask= of booleans", "bias= of numbers"),
    "attn_bias": ("bias",),
    "core_attention_bias": ("bias",),
    "logit_softcap": ("softcap",),
    "logits_soft_cap": ("softcap",),
    "attn_logit_softcapping": ("softcap",),
    "dropout_p": ("dropout", "p"),
    "attention_dropout": ("dropout",),
    "attn_dropout": ("dropout",),
    "hidden_dropout": ("dropout",),
    "drop": ("dropout", "p", "dropout_p"),
    "p": ("dropout", "dropout_p"),
    "dropout": ("dropout_p", "p"),
    "s_aux": ("sinks",),
    "sink": ("sinks",),
    "learnable_sink": ("sinks",),
    "return_attn_probs": ("return_lse",),
    "return_softmax_lse": ("return_lse",),
    "return_softmax": ("return_lse",),
    "softmax_lse": ("return_lse",),
    "cu_seqlens": ("cu_seqlens_q",),
    "cu_seq_q": ("cu_seqlens_q",),
    "cu_seq_k": ("cu_seqlens_k",),
    # attention over a cache
    "key_cache": ("k_cache",),
    "value_cache": ("v_cache",),
    "cache_seqlens": ("lengths",),
    "seq_lens": ("lengths",),
    "context_lens": ("lengths",),
    "kv_lens": ("lengths",),
    "cache_position": ("lengths",),
    "block_table": ("page_table",),
    "block_tables": ("page_table",),
    "page_tables": ("page_table",),
    "rotary_cos": ("cos",),
    "rotary_sin": ("sin",),
    "k_descale": ("k_scale",),
    "v_descale": ("v_scale",),
    "kv_layout": ("heads_first",),
    "layout": ("heads_first",),
    "tensor_format": ("heads_first",),
    "qkv_format": ("heads_first",),
    # rotations
    "unsqueeze_dim": ("heads_first",),
    "rotary_interleaved": ("interleaved",),
    "is_neox_style": ("interleaved",),
    "is_neox": ("interleaved",),
    "seqlen_offsets": ("offsets",),
    "positions": ("position_ids",),
    "mrope_section": ("sections",),
    "rope_theta": ("base",),
    "theta": ("base",),
    "rope_scaling": ("scaling",),
    "rotary_dim": ("dim",),
    "head_dim": ("dim", "rotary_dim"),
    "seq_len": ("max_positions", "context"),
    "max_seq_len": ("max_positions", "context"),
    "max_position_embeddings": ("max_positions", "context"),
    # norms and softmax
    "epsilon": ("eps",),
    "variance_epsilon": ("eps",),
    "layer_norm_eps": ("eps",),
    "layer_norm_epsilon": ("eps",),
    "rms_norm_eps": ("eps",),
    "layernorm_epsilon": ("eps",),
    "zero_centered_gamma": ("zero_centered_weight",),
    "offset": ("zero_centered_weight=True", "offsets"),
    "affine": ("elementwise_affine",),
    "include_weight": ("elementwise_affine",),
    "hidden_size": ("normalized_shape", "features", "in_features", "dim", "embed_dim"),
    "ffn_hidden_size": ("hidden_features", "inner_dim"),
    "intermediate_size": ("hidden_features", "inner_dim"),
    "axis": ("dim",),
    "mask_type": ("causal=True",),
    # linear layers and MLPs
    "in_channels": ("in_features", "features"),
    "out_channels": ("out_features",),
    "in_features": ("features",),
    "use_bias": ("bias",),
    "hidden_act": ("activation",),
    "act": ("activation",),
    "activation_type": ("activation",),
    "approximation": ("approximate",),
    "params_dtype": ("dtype",),
    # losses
    "lse_square_scale": ("z_loss",),
    "return_z_loss": ("z_loss",),
    "accum_dtype": ("float32_sums",),
    "logit_scale": ("scale",),
    "smoothing": ("label_smoothing",),
    "ignored_index": ("ignore_index",),
    "ignore_idx": ("ignore_index",),
    # models
    "vocabulary": ("vocab_size",),
    "n_embd": ("dim", "features", "embed_dim"),
    "d_model": ("dim", "features", "embed_dim"),
    "n_head": ("num_heads",),
    "n_heads": ("num_heads",),
    "nhead": ("num_heads",),
    "heads": ("num_heads",),
    "num_attention_heads": ("num_heads",),
    "num_key_value_heads": ("num_kv_heads",),
    "num_gqa_groups": ("num_kv_heads",),
    "n_layer": ("num_layers",),
    "n_layers": ("num_layers",),
    "depth": ("num_layers",),
    "num_hidden_layers": ("num_layers",),
    "n_positions": ("context",),
    "n_ctx": ("context",),
    "block_size": ("context",),
    "dim_feedforward": ("hidden_features", "inner_dim"),
    "node_features": ("in_features",),
    "n_classes": ("num_classes",),
    "num_labels": ("num_classes",),
}

# Foreign arguments that nothing here corresponds to, and why none is needed.
_NONE: dict[str, str] = {
    "enable_gqa": "heads are shared where k and v have fewer",
    "max_seqlen_q": "cu_seqlens_q tells it",
    "max_seqlen_k": "cu_seqlens_k tells it",
    "max_q": "cu_seqlens_q tells it",
    "max_k": "cu_seqlens_k tells it",
    "cache_leftpad": "sequences begin in the first row of their cache",
    "max_seqlen": "cu_seqlens tells it",
    "num_splits": "the kernel chooses it",
    "pack_gqa": "the kernel chooses it",
    "block_size": "the kernel chooses it",
    "memory_efficient": "the backward pass reads x, mean and rstd alone",
    "in_place": "the backward pass allocates its gradient",
    "casting_mode": "arithmetic is in float32, and float64 for float64",
    "row_mode": "the kernel chooses it",
    "init_fn": "weights begin at 1, or at 0 if zero-centered",
    "sequence_parallel": "parameters are plain ones; DTensors may be split by rows",
    "fuse_wgrad_accumulation": "gradients are added to .grad where that is possible",
}


def meant(name: str, parameters: Sequence[str]) -> str:
    """The end of a message about a name that is none of ``parameters``: what was probably meant."""
    offered = [ours for ours in _OURS.get(name, ()) if ours.split("=")[0] in parameters]
    if not offered and name in _NONE:
        return f"expected none ({_NONE[name]})"
    if not offered:
        offered = difflib.get_close_matches(name, parameters, n=1, cutoff=0.7)
    if not offered:
        return f"expected one of {', '.join(parameters)}"
    names = dict.fromkeys(ours.split("=")[0] for ours in offered)
    first = {ours.split("=")[0]: ours for ours in reversed(offered)}
    spelled = (first[ours] if "=" in first[ours] else f"{ours}=" for ours in names)
    return f"expected {' or '.join(names)} (did you mean {' or '.join(spelled)}?)"


def _is_offered(parameter: inspect.Parameter) -> bool:
    variable = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.kind not in variable and not parameter.name.startswith("_")


def refuse_names(op: str, parameters: Sequence[str], unknown: Mapping[str, Any]) -> None:
    """Raises if there are arguments of names that ``op`` does not have."""
    if unknown:
        faults = [f"{name} is not an argument, {meant(name, parameters)}" for name in unknown]
        raise ArgumentTypeError(f"{op}: {'; '.join(faults)}")


def refuse_call(function: Callable[..., Any], more: Sequence[Any], unknown: Any) -> None:
    """Raises for a call with arguments that ``function`` does not have: ``more`` by place and
    ``unknown`` by name."""
    op, parameters = function.__name__, inspect.signature(function).parameters.values()
    offered = [p.name for p in parameters if _is_offered(p)]
    refuse_names(op, offered, unknown)
    placed = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = [f"{name}=" for name in offered if name not in placed]
    by_name = f", others by name ({', '.join(named)})" if named else ""
    raise ArgumentTypeError(
        f"{op}: {len(placed) + len(more)} arguments are given by place, expected at most"
        f" {len(placed)} ({', '.join(placed)}){by_name}"
    )


def refuse_absent(op: str, named: Mapping[str, Any]) -> None:
    """Raises if a required argument is missing."""
    missing = [name for name, value in named.items() if value is ABSENT]
    if missing:
        raise ArgumentTypeError(f"{op}: {missing[0]} is missing, expected it")


def _parameters_of(cls: type, passed_to: Callable[..., Any] | None) -> list[str]:
    """The arguments of a constructor, and of those that it passes others to."""
    constructors = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    found: dict[str, None] = {}
    for function in (*constructors[:1], *filter(None, [passed_to]), *constructors[1:]):
        parameters = inspect.signature(function).parameters.values()
        found |= dict.fromkeys(p.name for p in parameters if _is_offered(p) and p.name != "self")
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return [*found]


def explain_names(cls: Class, passed_to: Callable[..., Any] | None = None) -> Class:
    """Makes the constructor of a class answer names that it does not know. Keywords that it does
    not name are arguments of ``passed_to``, or of the next constructor; private ones
    are its own."""
    construct: Callable[..., None] = cls.__init__  # type: ignore[misc]
    parameters = _parameters_of(cls, passed_to)

    @wraps(construct)
    def explained(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = {
            name: value
            for name, value in kwargs.items()
            if name not in parameters and not name.startswith("_")
        }
        refuse_names(cls.__name__, parameters, unknown)
        construct(self, *args, **kwargs)

    cls.__init__ = explained  # type: ignore[misc]
    return cls
