# SPDX-License-Identifier: MIT
"""Root-mean-square normalisation of the heads of q and k, followed by the rotation."""

from __future__ import annotations

from torch import Tensor

from ..._errors import as_flag
from .._public import overridable
from ._angles import angle_arguments, heads_last
from ._ops import QK_NORM

_OP = "qk_norm"


@overridable
def qk_norm(
    q: Tensor,
    k: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    position_ids: Tensor | None = None,
    offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    sections: tuple[int, int, int] | None = None,
    interleaved: bool = False,
    heads_first: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes ``x / sqrt(mean(x * x) + eps) * weight`` for each head of ``q`` and ``k``, and with
    ``cos`` and ``sin`` applies :func:`rope` to it, in one pass over both.

    Args:
        q: (B, T, H, D), or (T, H, D) without a batch; of any strides.
        k: likewise, with any number of heads; or None.
        q_weight: (D,), of ``q``'s dtype or float32.
        k_weight: likewise for ``k``; both have one dtype.
        eps: added to the mean of squares.
        cos: as in :func:`rope`, like all below; without it nothing is rotated.
        sin: as in :func:`rope`.
        position_ids: as in :func:`rope`.
        offsets: as in :func:`rope`.
        cu_seqlens: as in :func:`rope`.
        sections: as in :func:`rope`.
        interleaved: as in :func:`rope`.
        heads_first: tensors are (B, H, T, D), or (H, T, D).
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns:
        The normalised ``q``; if ``k`` is given, both.

    >>> q, k = torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64)
    >>> q_weight, k_weight = torch.ones(64), torch.ones(64)
    >>> cos, sin = tfk.functional.rope_tables(2048, 64)
    >>> q, k = tfk.functional.qk_norm(q, k, q_weight, k_weight, cos=cos, sin=sin)
    >>> k.shape
    torch.Size([2, 16, 2, 64])
    """
    angles = angle_arguments(
        _OP, q, cos, sin, position_ids, offsets, cu_seqlens, sections, interleaved
    )
    heads_first = as_flag(_OP, "heads_first", heads_first)
    tensors = (heads_last(q), heads_last(k)) if heads_first else (q, k)
    q_normed, k_normed = QK_NORM.call(*tensors, q_weight, k_weight, *angles, eps, backend)
    if heads_first:
        q_normed, k_normed = heads_last(q_normed), heads_last(k_normed)
    return q_normed if k is None else (q_normed, k_normed)
