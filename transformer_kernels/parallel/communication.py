# SPDX-License-Identifier: MIT
"""Sums over ranks, followed by what a transformer does next: the residual sum and the norm.

Where no kernel serves both together, a collective of :mod:`torch.distributed` runs, and then the
fused op of one rank; the log of ``TFK_LOG=dispatch`` says which way a call took.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from .._errors import ArgumentValueError, as_choice, as_integer, check_tensors
from .._library import log_dispatch
from ..functional import add_layer_norm, add_rms_norm
from ..ops._parallel import total
from ._ranks import Group, Ranks, ranks_of

_NORMS: dict[str, Any] = {"rms_norm": add_rms_norm, "layer_norm": add_layer_norm}
# The names since PyTorch 2.13, and before.
_NEW = ("reduce_scatter_single", "all_gather_single")
_OLD = ("reduce_scatter_tensor", "all_gather_into_tensor")


def all_reduce_residual_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    norm: str = "rms_norm",
    group: Group = None,
) -> tuple[Tensor, Tensor]:
    """Computes ``total = residual + (x summed over the ranks)`` and ``norm(total)``: what follows a
    layer that is split by rows.

    The results are those of every rank. As what follows computes alike on all of them, the gradient
    of ``x`` is that of the sum, and costs no communication.

    >>> x, residual = torch.randn(2, 2, 5, 64)
    >>> y, total = tfk.parallel.all_reduce_residual_norm(x, residual, torch.ones(64))
    >>> torch.equal(total, x + residual)  # without a process group there is one rank
    True

    Args:
        x: (..., C), a rank's share of a sum.
        residual: (..., C), the same on every rank.
        weight: (C,) of the norm, or None.
        bias: (C,) of the norm, or None.
        eps: eps of the norm; by default that of the norm's own function.
        norm: ``"rms_norm"`` or ``"layer_norm"``.
        group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        The norm of the total, and the total, each (..., C).

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit; the message names it.
    """
    op = "all_reduce_residual_norm"
    ranks = _checked(op, x, residual, weight, bias, norm, group)
    _say(op, ranks, "all-reduce", norm)
    summed = total(x, ranks) if ranks.size > 1 else x
    return _normed(norm, summed, residual, weight, bias, eps)


def reduce_scatter_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    norm: str = "rms_norm",
    group: Group = None,
    dim: int = 0,
) -> tuple[Tensor, Tensor]:
    """As :func:`all_reduce_residual_norm`, but each rank gets its part of the sum along ``dim``,
    and has that part of the residual alone (sequence parallelism).

    The gradient of ``x`` is gathered. Gradients of ``weight`` and ``bias`` are those of a rank's
    own rows: their sum over the ranks is the caller's.

    >>> x, residual = torch.randn(2, 2, 5, 64)
    >>> y, total = tfk.parallel.reduce_scatter_norm(x, residual, torch.ones(64), dim=1)
    >>> y.shape
    torch.Size([2, 5, 64])

    Args:
        x: (..., C), a rank's share of a sum.
        residual: (..., C), the rank's part along ``dim``.
        weight: (C,) of the norm, or None.
        bias: (C,) of the norm, or None.
        eps: eps of the norm; by default that of the norm's own function.
        norm: ``"rms_norm"`` or ``"layer_norm"``.
        group: as for :func:`all_reduce_residual_norm`.
        dim: a dimension of ``x`` before the last, of a multiple of the ranks.

    Returns:
        The norm of the total, and the total, each of the shape of ``residual``.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit; the message names it.
    """
    op = "reduce_scatter_norm"
    ranks = _checked(op, x, residual, weight, bias, norm, group)
    at = int(as_integer(op, "dim", dim))
    if not -x.dim() <= at < x.dim() or at % x.dim() == x.dim() - 1:
        raise ArgumentValueError(f"{op}: dim is {at}, expected a dimension of x before the last")
    if x.shape[at] % ranks.size:
        raise ArgumentValueError(
            f"{op}: x has {x.shape[at]} rows along dim, expected a multiple of {ranks.size} (ranks)"
        )
    _say(op, ranks, "reduce-scatter", norm)
    summed = _ReduceScatter.apply(x, ranks, at % x.dim()) if ranks.size > 1 else x
    return _normed(norm, summed, residual, weight, bias, eps)


def _checked(
    op: str, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, norm: str,
    group: Group,
) -> Ranks:  # fmt: skip
    tensors = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    check_tensors(op, tensors, "weight", "bias")
    as_choice(op, "norm", norm, _NORMS)
    if x.dim() < 1:
        raise ArgumentValueError(f"{op}: x has no dimension, expected at least one")
    return ranks_of(op, group)


def _say(op: str, ranks: Ranks, collective: str, norm: str) -> None:
    way = f"{ranks.backend}'s {collective}, then " if ranks.size > 1 else ""
    log_dispatch(f"{op}: ranks {ranks.size}: {way}add_{norm}")


def _normed(
    norm: str, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    options: dict[str, Any] = {} if eps is None else {"eps": eps}
    found: tuple[Tensor, Tensor] = _NORMS[norm](
        x, residual, x.shape[-1:], weight, bias=bias, **options
    )
    return found


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, dim: int) -> Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        rows = x.movedim(dim, 0).contiguous()
        own = rows.new_empty((rows.shape[0] // ranks.size, *rows.shape[1:]))
        _collective(0)(own, rows, group=ranks.group)
        return own.movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = gradient.movedim(ctx.dim, 0).contiguous()
        rows = own.new_empty((own.shape[0] * ctx.ranks.size, *own.shape[1:]))
        _collective(1)(rows, own, group=ctx.ranks.group)
        return rows.movedim(0, ctx.dim), None, None


def _collective(which: int) -> Any:
    return getattr(dist, _NEW[which], None) or getattr(dist, _OLD[which])
