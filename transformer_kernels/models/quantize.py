# SPDX-License-Identifier: MIT
"""Stores the linear layers of a model in 8 or 4 bits per number."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from .._errors import ArgumentTypeError, ArgumentValueError, as_count, as_integer, renamed
from ..fuse.derive import original
from ..nn.linear import Linear
from ..nn.quantized_linear import QuantizedLinear

_OP = "quantize"
_HEADS = ("lm_head", "head")
Model = TypeVar("Model", bound=nn.Module)


def quantize(
    model: Model, bits: int = 4, group_size: int = 32, *, head_bits: int | None = 8
) -> Model:
    """Replaces the linear layers of ``model`` by :class:`transformer_kernels.nn.QuantizedLinear`.

    A layer whose inputs are no multiple of ``group_size`` stays as it is, and so does an embedding:
    a head that was tied to it becomes a copy of fewer bits.

    Args:
        model: any module with :class:`torch.nn.Linear` inside; it is changed in place.
        bits: 8 or 4.
        group_size: the neighbouring numbers that share a scale.
        head_bits: bits of the head (``lm_head`` or ``head``), which decides between tokens; None
            leaves it as it is.

    Returns:
        The model.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument or a layer's weight does not fit; the
            model is then as it was.

    >>> model = tfk.models.Llama(tfk.models.LlamaConfig(
    ...     vocab_size=256, context=64, dim=32, num_layers=1, num_heads=2, inner_dim=64))
    >>> type(tfk.quantize(model, bits=4).model.layers[0].mlp.up_proj).__name__
    'QuantizedLinear'
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"{_OP}: model is {type(model).__name__}, expected a module")
    for name, value in (("bits", bits), ("head_bits", head_bits)):
        if value is not None and as_integer(_OP, name, value) not in (4, 8):
            raise ArgumentValueError(f"{_OP}: {name} is {value}, expected 4 or 8")
    as_count(_OP, "group_size", group_size)
    layers = {}  # all of them, before the first is put in: none may fail then
    for name, module in model.named_modules():
        bits_here = head_bits if name.rpartition(".")[2] in _HEADS else bits
        if name and bits_here is not None and _fits(module, group_size):
            layers[name] = _quantized(name, module, bits_here, group_size)
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)
    return model


def _quantized(name: str, linear: nn.Linear, bits: int, group_size: int) -> QuantizedLinear:
    """A layer with scales of 16 bits, where they hold those of its weight."""
    try:
        try:
            return QuantizedLinear.from_linear(linear, bits, group_size, scale_dtype=torch.float16)
        except ArgumentValueError:
            return QuantizedLinear.from_linear(linear, bits, group_size)
    except (ArgumentValueError, ArgumentTypeError) as error:
        raise renamed(_OP, error, lambda words: f"{words} (layer {name})") from None


def _fits(module: nn.Module, group_size: int) -> bool:
    """Whether it is a linear layer, and no other class that adds something to one."""
    is_plain = original(type(module)) in (nn.Linear, Linear)
    return is_plain and not module.in_features % group_size  # type: ignore[operator]
