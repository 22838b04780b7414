# SPDX-License-Identifier: MIT
"""Tensors that are more than strided memory: understood, left to their own, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._errors import ArgumentTypeError, ArgumentValueError

_PLAIN = (Tensor, torch.nn.Parameter)


def is_a(x: Any, module: str, name: str) -> bool:
    """Whether it is of this class, which exists where its module was imported; some take a second.

    Properties would tell as much, but ``__torch_function__`` is asked for each.
    """
    return type(x) is not Tensor and isinstance(x, getattr(sys.modules.get(module), name, ()))


def is_jagged(x: Any) -> bool:
    return is_a(x, "torch.nested._internal.nested_tensor", "NestedTensor")


def ragged_dim(x: Tensor) -> int:
    """The dimension of a jagged tensor that has a length for each sequence."""
    dim: int = x._ragged_idx  # type: ignore[attr-defined]
    return dim


def jagged_values(op: str, name: str, x: Tensor) -> Tensor:
    """The memory of a jagged tensor; the batch and the ragged dimension are one."""
    if x.lengths() is not None:  # type: ignore[attr-defined]
        raise ArgumentValueError(
            f"{op}: {name} is jagged with gaps between its sequences, expected none"
            " (contiguous() closes them)"
        )
    return x.values()


def jagged_like(x: Tensor, values: Tensor) -> Tensor:
    """``values`` with the sequences of ``x``, to which they can be added."""
    nested: Tensor = torch.nested.nested_tensor_from_jagged(
        values, x.offsets(), jagged_dim=ragged_dim(x),  # type: ignore[attr-defined]
        min_seqlen=x._maybe_min_seqlen,  # type: ignore[attr-defined]
        max_seqlen=x._maybe_max_seqlen,  # type: ignore[attr-defined]
    )  # fmt: skip
    return nested


def _kind_without_memory(x: Tensor) -> str | None:
    """What to give instead of a subclass that knows PyTorch's functions alone."""
    if is_a(x, "torch.nn.attention.bias", "CausalBias"):  # nobody wrote its memory
        return "a CausalBias, expected a plain tensor (causal=True hides the future)"
    if is_a(x, "torch.masked", "MaskedTensor"):
        return "a MaskedTensor, expected a plain tensor (get_data() gives it)"
    return None


def _fault(x: Tensor, jagged: bool) -> str | None:
    """What keeps a tensor from being memory, and what to give instead."""
    if is_jagged(x):
        return None if jagged else "a jagged nested tensor, expected a dense one"
    if x.is_nested:
        return "a nested tensor of strided layout, expected layout=torch.jagged"
    if x.layout is not torch.strided:
        layout = str(x.layout).removeprefix("torch.").removeprefix("_")
        return f"of layout {layout}, expected strided (to_dense() gives it)"
    if x.is_quantized:
        return "quantized, expected a floating-point tensor (dequantize() gives it)"
    return _kind_without_memory(x)


def _is_plain(x: Tensor) -> bool:
    return type(x) in _PLAIN and x.layout is torch.strided and not (x.is_quantized or x.is_nested)


def require_memory(op: str, named: Mapping[str, Any], jagged: Collection[str] = ()) -> None:
    """Raise where a tensor is not memory, but for those that may be ``jagged``."""
    for name, x in named.items():
        if not isinstance(x, Tensor) or _is_plain(x):
            continue
        fault = _fault(x, name in jagged)
        if fault is not None:
            raise ArgumentTypeError(f"{op}: {name} is {fault}")


def on_memory(op: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    """A formula that the dispatcher also calls where a tensor is not memory, and refuses it."""

    def checked(*arguments: Any) -> Any:
        for x in arguments:
            if isinstance(x, Tensor):
                require_memory(op, {"a tensor": x})
        return formula(*arguments)

    return checked


def only_jagged(*tensors: Any) -> bool:
    """Whether jagged tensors alone are why ``__torch_function__`` would be asked."""
    others = [x for x in tensors if not is_jagged(x)]
    return len(others) < len(tensors) and not has_torch_function((None, *others))


def ask_overloads(
    op: str, function: Callable[..., Any], named: Mapping[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """What ``__torch_function__`` of a tensor or of a mode makes of the call."""
    for name, x in named.items():
        fault = _kind_without_memory(x) if isinstance(x, Tensor) else None
        if fault is not None:
            raise ArgumentTypeError(f"{op}: {name} is {fault}")
    return handle_torch_function(function, tuple(named.values()), *args, **kwargs)
