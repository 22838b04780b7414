# SPDX-License-Identifier: MIT
"""Kinds of tensors beyond strided memory: each is computed, left to its own operators, or refused.

A plain subclass of Tensor is memory, and its ``__torch_function__`` is asked first, as in PyTorch.
The kinds that are listed here are not: reading them as memory would give wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._errors import ArgumentTypeError, ArgumentValueError
from .._names import refuse_absent
from .._torch import NESTED_MODULE, has_gaps, is_a

PLAIN_CLASSES = (Tensor, torch.nn.Parameter)
PLAIN_OR_NONE = frozenset((*PLAIN_CLASSES, type(None)))


def is_jagged(x: Any) -> bool:
    """Whether ``x`` is a nested tensor that holds its sequences one after the other."""
    return is_a(x, NESTED_MODULE, "NestedTensor")


def is_distributed(x: Any) -> bool:
    return is_a(x, "torch.distributed.tensor", "DTensor")


def is_causal_bias(x: Any) -> bool:
    """Whether ``x`` is PyTorch's ``causal_upper_left`` or ``causal_lower_right``: a tensor whose
    meaning is two lengths, and whose memory was never written."""
    return is_a(x, "torch.nn.attention.bias", "CausalBias")


# ---- what is refused ----------------------------------------------------------------------------

# The kinds without readable memory, and what to pass instead.
_WORDS = {
    "causal": "is a CausalBias, expected a plain tensor",
    "masked": "is a MaskedTensor, expected a plain tensor (get_data() gives it)",
    "jagged": "is a jagged nested tensor, expected a dense one",
    "nested": "is a nested tensor of strided layout, expected layout=torch.jagged",
    "layout": "is of layout {layout}, expected strided (to_dense() gives it)",
    "quantized": "is quantized, expected a floating-point tensor (dequantize() gives it)",
}
_WORDS_OF: dict[str, dict[str, str]] = {}


def refuse_in_words(op: str, **words: str) -> None:
    """Gives ``op`` its own messages for some kinds."""
    _WORDS_OF[op] = {**_WORDS, **words}


def _refusal(op: str, name: str, x: Tensor, kind: str) -> ArgumentTypeError:
    layout = str(x.layout).removeprefix("torch.").removeprefix("_")
    words = _WORDS_OF.get(op, _WORDS)[kind].format(layout=layout)
    return ArgumentTypeError(f"{op}: {name} {words}")


def _kind_without_memory(x: Tensor) -> str | None:
    """The kind of a subclass that only PyTorch's functions can read; None for others."""
    if is_causal_bias(x):
        return "causal"
    return "masked" if is_a(x, "torch.masked", "MaskedTensor") else None


def _fault(x: Tensor) -> str | None:
    """The reason why a tensor is not plain memory; None where it is."""
    if is_jagged(x):
        return "jagged"
    if x.is_nested:
        return "nested"
    if x.layout is not torch.strided:
        return "layout"
    return "quantized" if x.is_quantized else _kind_without_memory(x)


def is_plain(x: Tensor) -> bool:
    return (
        type(x) in PLAIN_CLASSES
        and x.layout is torch.strided
        and not (x.is_quantized or x.is_nested)
    )


def require_memory(op: str, named: Mapping[str, Any], jagged: Collection[str] = ()) -> None:
    """Raises where a tensor is not memory; those named in ``jagged`` may be jagged."""
    for name, x in named.items():
        if not isinstance(x, Tensor) or is_plain(x):
            continue
        kind = _fault(x)
        if kind is not None and not (kind == "jagged" and name in jagged):
            raise _refusal(op, name, x, kind)


def refuse_dispatch(
    op: str, named: Mapping[str, Any], accepts: Callable[[type], bool], why: str
) -> None:
    """Raises, with the tensor's name, where a subclass decides itself what an op does."""
    for name, x in named.items():
        if isinstance(x, Tensor) and not accepts(type(x)):
            raise ArgumentTypeError(
                f"{op}: {name} is a {type(x).__name__}, {why}, expected a plain tensor"
            )


def on_memory(op: str, formula: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A formula that refuses tensors without memory, with which the dispatcher may also call it."""

    def checked(*arguments: Any) -> Any:
        for x, name in zip_longest(arguments, names, fillvalue="a tensor"):
            require_memory(op, {name: x})
        return formula(*arguments)

    return checked


# ---- what is understood -------------------------------------------------------------------------


def jagged_values(op: str, name: str, x: Tensor) -> Tensor:
    """The memory of a jagged tensor, in which the batch and the ragged dimension are one."""
    if has_gaps(x):
        raise ArgumentValueError(
            f"{op}: {name} is jagged with gaps between its sequences, expected none"
            " (contiguous() closes them)"
        )
    return x.values()


def only_jagged(*tensors: Any) -> bool:
    """Whether only jagged tensors would make ``__torch_function__`` be asked."""
    others = [x for x in tensors if not is_jagged(x)]
    return len(others) < len(tensors) and not has_torch_function((None, *others))


def ask_overloads(
    op: str, function: Callable[..., Any], named: Mapping[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """The result of ``__torch_function__``, if a tensor or a mode overrides the call."""
    refuse_absent(op, named)
    for name, x in named.items():
        kind = _kind_without_memory(x) if isinstance(x, Tensor) else None
        if kind is not None:
            raise _refusal(op, name, x, kind)
    return handle_torch_function(function, tuple(named.values()), *args, **kwargs)
