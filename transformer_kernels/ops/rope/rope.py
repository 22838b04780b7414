# SPDX-License-Identifier: MIT
"""Rotary position embedding of q and k."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._errors import as_flag, translate
from ..._torch import is_eager
from .._declare_checks import as_declared
from .._kinds import is_distributed
from .._public import overridable
from ._angles import angle_arguments, heads_last
from ._ops import ROPE, rotate_in_place

_OP = "rope"


def _overwrite(arguments: tuple[Any, ...], backend: str) -> None:
    """Rotates in the memory of q and k; by PyTorch's operations where autograd or a formula has to
    see it."""
    tensors = [x for x in arguments[:2] if isinstance(x, Tensor)]
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    plain = all(x.stride(-1) == 1 or x.shape[-1] <= 1 for x in tensors if x.dim())
    plain = plain and not any(map(is_distributed, tensors))
    if backend == "auto" and is_eager() and not differentiable and plain:
        _run_in_place(arguments)
        return
    for x, rotated in zip(arguments[:2], ROPE.call(*arguments, backend), strict=True):
        if x is not None:
            x.copy_(rotated)


def _run_in_place(arguments: tuple[Any, ...]) -> None:
    """Runs the plain call; if it fails, converts arguments to the schema's types and runs it
    again."""
    try:
        rotate_in_place(*arguments)
    except (RuntimeError, TypeError, AttributeError) as error:
        declared = as_declared(ROPE, arguments)
        if any(a is not b for a, b in zip(declared, arguments, strict=True)):
            return _run_in_place(declared)
        raise translate(_OP, error) from None


@overridable
def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    position_ids: Tensor | None = None,
    offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    sections: tuple[int, int, int] | None = None,
    interleaved: bool = False,
    heads_first: bool = False,
    inplace: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotary position embedding (Su et al. 2021) of ``q`` and ``k``, in one pass over both.

    Each pair (a, b) of numbers in a head becomes ``(a cos - b sin, b cos + a sin)``; the tables
    hold the angle for the token's position and the pair's frequency.

    Args:
        q: (B, T, H, D), or (T, H, D) without a batch; of any strides.
        k: likewise, with any number of heads; or None.
        cos: (P, R / 2), cosines of P positions and R / 2 frequencies, of ``q``'s dtype or float32
            (:func:`rope_tables`). If R is less than D, the rest of each head is not rotated. The
            tables have no gradient.
        sin: sines, likewise.
        position_ids: integers that broadcast to (B, T): the tables' rows. With ``sections`` (3, B,
            T): positions in time, height and width. By default tokens are counted from 0.
        offsets: added to the counted positions: an int, or one for each sequence, (B,).
        cu_seqlens: (sequences + 1,) int32, for packed sequences with ``q`` (T, H, D): the first row
            of each sequence, and the number of rows. Tokens are counted within their sequence; rows
            after the last sequence are not rotated.
        sections: how many frequencies turn with time, height and width (M-RoPE of Qwen2-VL); R / 2
            in all.
        interleaved: whether pairs are neighbours, as in GPT-J, instead of halves, as in GPT-NeoX
            and Llama.
        heads_first: whether tensors are (B, H, T, D), or (H, T, D).
        inplace: write the results to ``q`` and ``k`` and return these. Without gradients this saves
            memory; with gradients it has PyTorch's meaning.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns:
        The rotated ``q``; if ``k`` is given, both. A position that the tables lack is an error; on
        a GPU, where reading ``position_ids``, ``offsets`` or ``cu_seqlens`` would wait, it gives
        NaN.

    >>> q, k = torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64)  # batch, time, heads, dim
    >>> cos, sin = tfk.functional.rope_tables(2048, 64)
    >>> q, k = tfk.functional.rope(q, k, cos, sin)
    >>> q.shape, k.shape
    (torch.Size([2, 16, 8, 64]), torch.Size([2, 16, 2, 64]))
    """
    angles = angle_arguments(
        _OP, q, cos, sin, position_ids, offsets, cu_seqlens, sections, interleaved
    )
    heads_first = as_flag(_OP, "heads_first", heads_first)
    arguments = (*((heads_last(q), heads_last(k)) if heads_first else (q, k)), *angles)
    if as_flag(_OP, "inplace", inplace):
        _overwrite(arguments, backend)
        return q if k is None else (q, k)
    q_rotated, k_rotated = ROPE.call(*arguments, backend)
    if heads_first:
        q_rotated, k_rotated = heads_last(q_rotated), heads_last(k_rotated)
    return q_rotated if k is None else (q_rotated, k_rotated)
