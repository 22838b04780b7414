# SPDX-License-Identifier: MIT
"""Converts the public arguments of tables and positions to those of the ops."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, as_flag, is_integer, shown
from ..._torch import any_autocast
from .._constants import refuse_gradient
from .._declare_arguments import Given
from .._promote import beside


def heads_last(x: Any) -> Any:
    """Transposes (..., H, T, D) to (..., T, H, D); the op refuses tensors without such
    dimensions."""
    return x.transpose(-3, -2) if isinstance(x, Tensor) and x.dim() >= 3 else x


def _split_offsets(op: str, offsets: Any) -> tuple[Tensor | None, int]:
    if isinstance(offsets, Tensor):
        return offsets, 0
    if not is_integer(offsets):
        raise ArgumentTypeError(f"{op}: offsets is {shown(offsets)}, expected an int or a Tensor")
    return None, offsets


def _sections(op: str, sections: Any, position_ids: Any, q: Any, cos: Any) -> tuple[int, int]:
    """The numbers of frequencies of time and height; the rest belong to width."""
    axes = all(isinstance(x, Tensor) for x in (position_ids, q)) and (
        position_ids.dim() >= q.dim() - 1
    )
    if sections is None:
        if axes:
            raise ArgumentValueError(
                f"{op}: sections is missing, expected (time, height, width) with position_ids of"
                f" {position_ids.dim()} dimensions"
            )
        return 0, 0
    if not isinstance(sections, (tuple, list)) or not all(map(is_integer, sections)):
        raise ArgumentTypeError(f"{op}: sections is {shown(sections)}, expected three ints")
    columns = cos.shape[-1] if isinstance(cos, Tensor) and cos.dim() else 0
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != columns:
        raise ArgumentValueError(
            f"{op}: sections is {tuple(sections)}, expected three numbers of frequencies,"
            f" {columns} in all (the columns of cos)"
        )
    if not axes:
        raise ArgumentValueError(
            f"{op}: sections is given, expected none without position_ids of three axes"
        )
    return sections[0], sections[1]


def hint_of_tables(given: Given) -> str:
    """For tables of Hugging Face's models, which have a batch, and each column twice."""
    q, cos = given["q"], given["cos"]
    if not (isinstance(q, Tensor) and isinstance(cos, Tensor) and q.dim() and cos.dim() in (2, 3)):
        return ""
    columns = cos.shape[-1]
    if cos.dim() == 2 and columns != q.shape[-1]:
        return ""
    part = f"[{'0, ' * (cos.dim() == 3)}:, :{columns // 2}]"
    return (
        f"did you mean cos{part} and sin{part}, with heads_first=True for q of (batch, heads, time,"
        " dim), as Hugging Face's models have them?"
    )


def angle_arguments(
    op: str,
    q: Any,
    cos: Any,
    sin: Any,
    position_ids: Any,
    offsets: Any,
    cu_seqlens: Any,
    sections: Any,
    interleaved: Any,
) -> tuple[Any, ...]:
    """The arguments from the tables on, in schema order."""
    refuse_gradient(op, cos=cos, sin=sin)
    if any_autocast() and isinstance(q, Tensor):
        cos, sin = (beside(x, q) if isinstance(x, Tensor) else x for x in (cos, sin))
    tensor_offsets, offset = _split_offsets(op, offsets)
    time, height = _sections(op, sections, position_ids, q, cos)
    interleaved = as_flag(op, "interleaved", interleaved)
    return cos, sin, position_ids, tensor_offsets, cu_seqlens, offset, time, height, interleaved
