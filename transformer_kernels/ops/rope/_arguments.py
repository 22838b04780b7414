# SPDX-License-Identifier: MIT
"""Makes C++'s checks of the rotation's arguments, with its messages, where no C++ runs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    check_floating,
    check_known,
    dtype_name,
    or_float32,
    shape_text,
)
from ..._torch import has_memory
from .._declare_arguments import Given
from .._dtype import accumulate_dtype
from .._sequences import check_cu_seqlens, is_readable
from ._formula import Angles, has_axes, positions


def _fail(op: str, message: str) -> None:
    raise ArgumentValueError(f"{op}: {message}")


def _check_type(op: str, name: str, x: Tensor, expected: torch.dtype, reason: str) -> None:
    if x.dtype is not expected:
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(x.dtype)}, expected {dtype_name(expected)} ({reason})"
        )


def _check_tensors(op: str, q: Tensor, given: Given) -> None:
    for name, value in given.items():
        if isinstance(value, Tensor):
            check_known(op, name, value)
            if value.device != q.device:
                _fail(op, f"{name} is on {value.device}, expected {q.device}")


def _check_heads(op: str, q: Tensor, k: Tensor | None) -> None:
    check_floating(op, "q", q)
    if q.dim() not in (3, 4):
        _fail(
            op,
            f"q has {q.dim()} dimensions, expected 3 (time, heads, dim) or 4 (batch, time, heads,"
            " dim)",
        )
    if k is None:
        return
    _check_type(op, "k", k, q.dtype, "the dtype of q")
    same_rank = k.dim() == q.dim()
    wanted = (*q.shape[:-2], (k if same_rank else q).shape[-2], q.shape[-1])
    if tuple(k.shape) != wanted:
        _fail(op, f"k has shape {shape_text(k)}, expected {wanted} (that of q but for the heads)")


def _check_tables(op: str, q: Tensor, cos: Tensor, sin: Tensor) -> None:
    check_floating(op, "cos", cos)
    if cos.dtype not in (q.dtype, accumulate_dtype(q)):
        raise ArgumentTypeError(
            f"{op}: cos is {dtype_name(cos.dtype)}, expected {dtype_name(q.dtype)}"
            f"{or_float32(q.dtype)} (the dtype of q)"
        )
    if cos.dim() != 2:
        _fail(op, f"cos has {cos.dim()} dimensions, expected 2 (positions, frequencies)")
    most = q.shape[-1] // 2
    if not 1 <= cos.shape[1] <= most:
        _fail(op, f"cos has {cos.shape[1]} columns, expected 1 to {most} (pairs in a head of q)")
    _check_type(op, "sin", sin, cos.dtype, "the dtype of cos")
    if sin.shape != cos.shape:
        _fail(op, f"sin has shape {shape_text(sin)}, expected {shape_text(cos)} (the shape of cos)")


def _check_sections(op: str, angles: Angles, left: int, reason: str) -> None:
    for name in ("section_time", "section_height"):
        size = getattr(angles, name)
        if not 0 <= size <= left:
            _fail(op, f"{name} is {size}, expected 0 to {left} ({reason})")
        left -= size


def _check_ids(op: str, q: Tensor, angles: Angles) -> None:
    ids = angles.position_ids
    assert ids is not None
    axes = has_axes(ids, q)
    wanted = (3, *q.shape[:-2]) if axes else tuple(q.shape[:-2])
    trailing = zip(reversed(ids.shape), reversed(wanted), strict=False)
    if ids.dim() > len(wanted) or any(size not in (1, full) for size, full in trailing):
        _fail(
            op,
            f"position_ids has shape {shape_text(ids)}, expected one that broadcasts to {wanted}"
            " (batch and time of q)",
        )
    for name in ("offsets", "cu_seqlens"):
        if getattr(angles, name) is not None:
            _fail(op, f"{name} is given, expected none with position_ids")
    if angles.offset != 0:
        _fail(op, f"offset is {angles.offset}, expected 0 with position_ids")
    if axes:
        _check_sections(op, angles, angles.cos.shape[1], "frequencies that are left")
    else:
        _check_sections(op, angles, 0, "position_ids has no axes")


def _check_sequences(op: str, q: Tensor, at: Tensor) -> None:
    if q.dim() != 3:
        _fail(op, f"cu_seqlens is given, expected none with q of {q.dim()} dimensions")
    check_cu_seqlens(op, "cu_seqlens", at, q.shape[0], "q")


def _check_counted(op: str, q: Tensor, angles: Angles) -> None:
    _check_sections(op, angles, 0, "position_ids has no axes")
    if angles.offset < 0:
        _fail(op, f"offset is {angles.offset}, expected 0 or more")
    sequences = q.shape[0] if q.dim() == 4 else 1
    if angles.cu_seqlens is not None:
        _check_sequences(op, q, angles.cu_seqlens)
        sequences = angles.cu_seqlens.numel() - 1
    offsets = angles.offsets
    if offsets is not None and offsets.dim() != 1:
        _fail(op, f"offsets has {offsets.dim()} dimensions, expected 1")
    if offsets is not None and offsets.numel() != sequences:
        _fail(op, f"offsets has {offsets.numel()} elements, expected {sequences} (sequences)")


def _source(angles: Angles) -> str:
    for name in ("position_ids", "offsets", "cu_seqlens"):
        if getattr(angles, name) is not None:
            return name
    return "q"


def _check_positions(op: str, q: Tensor, angles: Angles) -> None:
    """Checks positions that the host can read without waiting."""
    tensors = (angles.position_ids, angles.offsets, angles.cu_seqlens)
    if torch.compiler.is_compiling() or not (
        has_memory(type(q)) and all(map(is_readable, tensors))
    ):
        return
    at, held = positions(q, angles, "cpu")
    if held is not None:
        at = at[held]
    last = angles.cos.shape[0] - 1
    outside = at[(at < 0) | (at > last)]
    if outside.numel():
        _fail(
            op,
            f"{_source(angles)} has position {int(outside[0])}, expected 0 to {last} (the rows of"
            " cos)",
        )


def _check_no_positions(op: str, angles: Angles) -> None:
    for name in ("sin", "position_ids", "offsets", "cu_seqlens"):
        if getattr(angles, name) is not None:
            _fail(op, f"{name} is given, expected none without cos")
    for name in ("offset", "section_time", "section_height"):
        if getattr(angles, name) != 0:
            _fail(op, f"{name} is {getattr(angles, name)}, expected 0 without cos")


def check(op: str, given: Given) -> None:
    """Raises where an op of the family cannot take its tensors of heads, tables and positions."""
    q = given["q"]
    angles = Angles(*(given[name] for name in Angles._fields))
    _check_tensors(op, q, given)
    _check_heads(op, q, given["k"])
    if given["cos"] is None:
        _check_no_positions(op, angles)
        return
    if given["sin"] is None:
        _fail(op, "sin is missing")
    _check_tables(op, q, angles.cos, angles.sin)
    if angles.position_ids is not None:
        _check_ids(op, q, angles)
    else:
        _check_counted(op, q, angles)
    _check_positions(op, q, angles)
