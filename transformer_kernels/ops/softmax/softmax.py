# SPDX-License-Identifier: MIT
"""softmax and log_softmax over any dimension."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from ..._errors import (
    ArgumentIndexError,
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    check_tensors,
    shape_text,
)
from ..._library import log_dispatch
from ..._torch import any_autocast, jagged_like, ragged_dim, softmax_dim
from .._declare_arguments import Mask
from .._kinds import PLAIN_CLASSES, is_jagged, jagged_values, refuse_in_words, require_memory
from .._public import overridable
from ._ops import SOFTMAX

_call = SOFTMAX.call

for _op in ("softmax", "log_softmax"):
    refuse_in_words(
        _op, causal="is a CausalBias, expected a plain tensor (causal=True hides the future)"
    )


def _wrapped_dim(op: str, dim: Any, rank: int) -> int:
    if isinstance(dim, (bool, float, str)) or not hasattr(dim, "__index__"):
        raise ArgumentTypeError(f"{op}: dim is {dim!r}, expected an int")
    index = operator.index(dim)
    bound = max(rank, 1)
    if not -bound <= index < bound:
        raise ArgumentIndexError(
            f"{op}: dim is {index}, expected one of [{-bound}, {bound - 1}]"
            f" (x has {rank} dimensions)"
        )
    return index % bound


def _autocast(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Casts as torch.softmax does under autocast: to float32, except on the CPU."""
    low = (torch.float16, torch.bfloat16)
    if x.dtype not in low or x.device.type == "cpu":
        return x, mask
    if not torch.is_autocast_enabled(x.device.type):
        return x, mask
    if mask is not None and mask.dtype in low:
        mask = mask.float()
    return x.float(), mask


def _check_types(op: str, x: Any, mask: Any, dtype: Any) -> None:
    check_tensors(op, {"x": x, "mask": mask}, "mask")
    require_memory(op, {"x": x, "mask": mask}, jagged=("x", "mask") if is_jagged(x) else ())
    if dtype is not None and not isinstance(dtype, (torch.dtype, type)):
        raise ArgumentTypeError(f"{op}: dtype is {dtype!r}, expected a torch.dtype")


def _along(
    op: str, x: Tensor, dim: Any, stacklevel: int, dtype: torch.dtype | None, scale: Any,
    mask: Tensor | None, causal: Any, backend: str,
) -> Tensor:  # fmt: skip
    try:
        if dim is None:
            dim = softmax_dim(op, x.dim(), stacklevel)
        return _along_dim(op, x, dim, dtype, scale, mask, causal, backend)
    except (RuntimeError, AttributeError, TypeError):
        _check_types(op, x, mask, dtype)
        raise


def _along_dim(
    op: str, x: Tensor, dim: Any, dtype: torch.dtype | None, scale: Any, mask: Tensor | None,
    causal: Any, backend: str,
) -> Tensor:  # fmt: skip
    """Runs along ``dim``; one that is not the last is moved there and back by copies."""
    index = _wrapped_dim(op, dim, x.dim())
    if dtype is not None:
        x = x.to(dtype)
    elif any_autocast():
        x, mask = _autocast(x, mask)
    if is_jagged(x):
        return _along_in_sequences(op, x, dim, scale, mask, causal, backend)
    log = op == "log_softmax"
    if index == max(x.dim() - 1, 0):
        return _call(x, mask, scale, causal, log, backend)
    if as_flag(op, "causal", causal):
        raise ArgumentValueError(f"{op}: dim is {dim}, expected -1 (causal)")
    if mask is not None:
        Mask("mask").check(op, mask, {"x": x})
        mask = mask.expand(x.shape).transpose(index, -1)
    log_dispatch(f"{op}: dim {index} is not the last: x is copied, and the result is copied back")
    y = _call(x.transpose(index, -1).contiguous(), mask, scale, causal, log, backend)
    return y.transpose(index, -1).clone(memory_format=torch.contiguous_format)


# ---- jagged nested tensors ----------------------------------------------------------------------


def _mask_of_values(op: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    dense = x.dim() - ragged_dim(x) - 1
    if mask is None or (not is_jagged(mask) and mask.dim() <= dense):
        return mask
    if is_jagged(mask) and mask.shape[:-dense] == x.shape[:-dense]:
        return jagged_values(op, "mask", mask)
    raise ArgumentValueError(
        f"{op}: mask has shape {shape_text(mask)}, expected one that broadcasts to"
        f" {tuple(x.shape[-dense:])}, or the sequences of x"
    )


def _along_in_sequences(
    op: str, x: Tensor, dim: Any, scale: Any, mask: Tensor | None, causal: Any, backend: str
) -> Tensor:
    """Runs along a dimension after the ragged one, on the values, which are adjacent in memory."""
    ragged, index = ragged_dim(x), _wrapped_dim(op, dim, x.dim())
    if index <= ragged:
        raise ArgumentValueError(
            f"{op}: dim is {dim}, expected a dimension after the ragged one of x, which is"
            f" {ragged} (torch.{op} serves the ragged one)"
        )
    if causal and x.dim() - ragged <= 2:
        raise ArgumentValueError(
            f"{op}: x has {x.dim() - ragged - 1} dimensions after the ragged one, expected at"
            " least 2 (causal)"
        )
    values, mask = jagged_values(op, "x", x), _mask_of_values(op, x, mask)
    return jagged_like(x, _along_dim(op, values, index - 1, None, scale, mask, causal, backend))


# ---- functions ----------------------------------------------------------------------------------

# Frames between _along() and the user's line: the function and its wrapper.
_FRAMES = 2


def _is_plain(x: Any, dim: Any, dtype: Any) -> bool:
    """Whether the op takes the arguments as they are."""
    return (
        type(dim) is int
        and type(x) in PLAIN_CLASSES
        and (dim == -1 or dim == x.dim() - 1)
        and dtype is None
        and not any_autocast()
    )


@overridable
def softmax(
    input: Tensor,  # noqa: A002
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.softmax`, with a scale and masks.

    Args:
        input: a floating-point tensor, of any strides.
        dim: the dimension that sums to 1; if it is not the last, input and result are copied.
        dtype: ``input`` is cast to this dtype first.
        scale: factor of ``input``.
        mask: broadcasts to ``input``'s shape; boolean (true is kept), or added to ``input *
            scale``, in ``input``'s dtype or float32; an additive mask may require a gradient.
        causal: hide later keys, over the last two dimensions (queries, keys), aligned to the bottom
            right corner.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"``, ``"fpga"`` (an array, without mask
            or gradient) or ``"reference"``.

    Under CUDA autocast the result is float32, as in PyTorch.

    >>> scores = torch.randn(2, 4, 16, 16)  # batch, heads, queries, keys
    >>> weights = tfk.functional.softmax(scores, -1, scale=0.125, causal=True)
    >>> weights[0, 0, 0, :3]  # the first query sees the first key alone
    tensor([1., 0., 0.])
    """
    if _is_plain(input, dim, dtype):
        return _call(input, mask, scale, causal, False, backend)
    return _along("softmax", input, dim, _stacklevel + _FRAMES, dtype, scale, mask, causal, backend)


@overridable
def log_softmax(
    input: Tensor,  # noqa: A002
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.log_softmax`, with a scale and masks.

    The arguments are those of :func:`softmax`.

    >>> logits = torch.randn(4, 1000)
    >>> y = tfk.functional.log_softmax(logits, -1)
    >>> torch.allclose(y, torch.log_softmax(logits, -1), atol=1e-5)
    True
    """
    if _is_plain(input, dim, dtype):
        return _call(input, mask, scale, causal, True, backend)
    return _along(
        "log_softmax", input, dim, _stacklevel + _FRAMES, dtype, scale, mask, causal, backend
    )
