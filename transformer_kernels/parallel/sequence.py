# SPDX-License-Identifier: MIT
"""Splits sequences between ranks, and joins them again.

The contiguous layout gives rank r the r-th of N equal parts. Under a causal mask that is uneven:
the last rank's queries see all keys, the first one's only their own. The zigzag layout cuts a
sequence into 2N chunks and gives rank r the chunks r and 2N - 1 - r, one of few keys and one of
many, so that all ranks compute the same number of scores in each step of a ring (as the context
parallelism of Llama 3, arXiv:2407.21783, section 3.3.2, splits it).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_choice,
    check_tensors,
    shape_text,
)
from ._ranks import Group, Ranks, ranks_of

CONTIGUOUS, ZIGZAG = 1, 2  # the chunks of a rank
LAYOUTS = {"zigzag": ZIGZAG, "contiguous": CONTIGUOUS}


def check_rows(op: str, q: Tensor, k: Tensor, v: Tensor, packed: bool) -> None:
    """Refuses tensors that are not a rank's rows of the same tokens; attention refuses the rest."""
    dims, shape = (3, "(T, H, D), with cu_seqlens") if packed else (4, "(B, T, H, D)")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != dims:
            raise ArgumentValueError(
                f"{op}: {name} has {x.dim()} dimensions, expected {dims}, {shape}"
            )
        if x.shape[:-2] != q.shape[:-2]:
            raise ArgumentValueError(
                f"{op}: {name} has shape {shape_text(x)}, expected the rows of q"
                f" {shape_text(q)}: each rank has queries and keys of the same tokens"
            )


def lengths_of(op: str, cu_seqlens: Tensor, total: int) -> list[int]:
    """The lengths of packed sequences, from their offsets; reads them on the host."""
    check_tensors(op, {"cu_seqlens": cu_seqlens})
    if cu_seqlens.dtype is not torch.int32 or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        raise ArgumentTypeError(f"{op}: cu_seqlens is no int32 vector, expected one of offsets")
    offsets = cu_seqlens.tolist()
    lengths = [end - start for start, end in itertools.pairwise(offsets)]
    if offsets[0] != 0 or offsets[-1] != total or min(lengths, default=0) < 0:
        raise ArgumentValueError(
            f"{op}: cu_seqlens goes from {offsets[0]} to {offsets[-1]}, expected 0 to {total} (the"
            " rows of all ranks), never falling"
        )
    return lengths


def refuse_uneven(op: str, lengths: Sequence[int], ranks: Ranks, chunks: int) -> None:
    """Raises where a sequence does not split into equal chunks."""
    for length in lengths:
        if length % (ranks.size * chunks):
            raise ArgumentValueError(
                f"{op}: a sequence has {length} tokens, expected a multiple of"
                f" {ranks.size * chunks} ({ranks.size} ranks of {chunks} chunks each)"
            )


def _places(lengths: Sequence[int], ranks: Ranks, chunks: int) -> list[Tensor]:
    """The rows of each rank, counted through all sequences."""
    found: list[list[Tensor]] = [[] for _ in range(ranks.size)]
    start = 0
    for length in lengths:
        rows = torch.arange(start, start + length).chunk(ranks.size * chunks)
        for rank in range(ranks.size) if length else ():
            found[rank].append(rows[rank])
            if chunks == ZIGZAG:
                found[rank].append(rows[2 * ranks.size - 1 - rank])
        start += length
    return [torch.cat(rows) if rows else torch.arange(0) for rows in found]


def _split(
    op: str, total: int, ranks: Ranks, layout: str, cu_seqlens: Tensor | None
) -> list[Tensor]:
    chunks = as_choice(op, "layout", layout, LAYOUTS)
    lengths = [total] if cu_seqlens is None else lengths_of(op, cu_seqlens, total)
    refuse_uneven(op, lengths, ranks, chunks)
    return _places(lengths, ranks, chunks)


def shard_sequence(
    x: Tensor,
    group: Group = None,
    *,
    dim: int = 1,
    layout: str = "zigzag",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Takes this rank's part of a sequence that every rank has whole: of tokens, embeddings,
    labels or positions. Nothing is sent. The gradient is that of the part.

    Args:
        x: a tensor of any dtype with time in ``dim``.
        group: a process group or a mesh of one dimension; by default all processes.
        dim: the dimension of time; 0 for packed sequences and for positions.
        layout: ``"zigzag"`` or ``"contiguous"``.
        cu_seqlens: int32 (sequences + 1), the offsets of packed sequences; each of them is split.

    Returns:
        A copy of 1/N of the rows, in their order.

    Raises:
        ArgumentValueError: a length is no multiple of N, or of 2N in the zigzag layout.
        ArgumentTypeError: ``cu_seqlens`` or ``group`` is none of these.

    >>> positions = tfk.parallel.shard_sequence(torch.arange(16), dim=0)
    >>> len(positions)  # without a process group there is one rank
    16
    """
    op = "shard_sequence"
    check_tensors(op, {"x": x})
    ranks = ranks_of(op, group)
    rows = _split(op, x.shape[dim], ranks, layout, cu_seqlens)[ranks.rank]
    return x.index_select(dim, rows.to(x.device))


def unshard_sequence(
    x: Tensor,
    group: Group = None,
    *,
    dim: int = 1,
    layout: str = "zigzag",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Gathers the parts of all ranks, and puts their rows into the order of time: the inverse of
    :func:`shard_sequence`, for results that one wants whole. It has no gradient, since training
    keeps its loss with the parts.

    Args:
        x: this rank's part; those of all ranks have one shape and dtype.
        group, dim, layout, cu_seqlens: as of :func:`shard_sequence`.

    Returns:
        The whole tensor, on every rank.

    Raises:
        ArgumentValueError: the parts are none of such a layout, or ``x`` requires a gradient.
        ArgumentTypeError: ``cu_seqlens`` or ``group`` is none of these.

    >>> x = torch.randn(2, 8, 4)
    >>> whole = tfk.parallel.unshard_sequence(tfk.parallel.shard_sequence(x))
    >>> torch.equal(whole, x)
    True
    """
    op = "unshard_sequence"
    check_tensors(op, {"x": x})
    if x.requires_grad and torch.is_grad_enabled():
        raise ArgumentValueError(
            f"{op}: x requires a gradient, expected a call under torch.no_grad()"
        )
    ranks = ranks_of(op, group)
    places = _split(op, x.shape[dim] * ranks.size, ranks, layout, cu_seqlens)
    parts = [x]
    if ranks.size > 1:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in places]
        dist.all_gather(parts, x.contiguous(), group=ranks.group)
    order = torch.cat(places).argsort().to(x.device)
    return torch.cat(parts, dim).index_select(dim, order)
