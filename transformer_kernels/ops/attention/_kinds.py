# SPDX-License-Identifier: MIT
"""Tensors that are more than strided memory: what attention understands, what it refuses by name.

A plain subclass of Tensor is memory; its ``__torch_function__`` is asked first, as everywhere in
PyTorch. What is listed here is not: read as memory it would give wrong numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from ..._errors import ArgumentTypeError, ArgumentValueError


def is_causal_bias(x: Any) -> bool:
    """Whether it is PyTorch's ``causal_upper_left`` or ``causal_lower_right``: a tensor with two
    lengths for its meaning, and memory that nobody wrote."""
    if x is None or type(x) is Tensor:
        return False
    module = sys.modules.get("torch.nn.attention.bias")  # importing it takes a second
    return module is not None and isinstance(x, module.CausalBias)


def is_jagged(x: Any) -> bool:
    """Whether it is a nested tensor that holds its sequences one after the other."""
    return isinstance(x, Tensor) and x.is_nested and x.layout is torch.jagged


def is_top_left(bias: Any, queries: int, keys: int) -> bool:
    """Whether a CausalBias stands in the top left corner. PyTorch reads its lengths as we do: one
    of the lower right corner counts by their difference, any other not at all."""
    shift = bias.seq_len_kv - bias.seq_len_q
    if bias.variant.name == "UPPER_LEFT":
        return True
    if shift == keys - queries:
        return False
    raise ArgumentValueError(
        "scaled_dot_product_attention: attn_mask is causal_lower_right"
        f"({bias.seq_len_q}, {bias.seq_len_kv}), expected ({queries}, {keys}) (queries, keys)"
    )


def _fault(name: str, x: Tensor) -> str | None:
    """What keeps a tensor from being memory, and what to give instead."""
    if is_causal_bias(x):
        return (
            f"{name} is a CausalBias, expected causal=True instead, with top_left=True for"
            " causal_upper_left"
        )
    if is_jagged(x):
        return (
            f"{name} is a jagged nested tensor, expected a strided one (attention() takes jagged"
            " ones as q, k and v, all three)"
        )
    if x.is_nested:
        return f"{name} is a nested tensor of strided layout, expected layout=torch.jagged"
    if x.layout is not torch.strided:
        kind = str(x.layout).removeprefix("torch.").removeprefix("_")
        return f"{name} has the layout {kind}, expected strided (to_dense() makes it so)"
    if x.is_quantized:
        return f"{name} is quantized, expected a floating-point tensor (dequantize() gives it)"
    return None


def require_memory(named: dict[str, Any]) -> None:
    """Raise where a tensor is not memory, by its name."""
    for name, x in named.items():
        fault = _fault(name, x) if isinstance(x, Tensor) else None
        if fault is not None:
            raise ArgumentTypeError(f"attention: {fault}")


def refuse_dispatch(named: dict[str, Any], accepts: Callable[[type], bool], why: str) -> None:
    """Raise where a subclass decides itself what an op does, by the tensor's name."""
    for name, x in named.items():
        if isinstance(x, Tensor) and not accepts(type(x)):
            raise ArgumentTypeError(
                f"attention: {name} is a {type(x).__name__}, {why}, expected a plain tensor"
            )


def ask_overloads(
    function: Callable[..., Any], positional: dict[str, Any], named: dict[str, Any]
) -> Any:
    """What ``__torch_function__`` of any argument makes of the call."""
    arguments = {**positional, **named}
    for name, x in arguments.items():
        if is_causal_bias(x):  # its own knows PyTorch's function alone
            require_memory({name: x})
    return handle_torch_function(function, tuple(arguments.values()), *positional.values(), **named)
