# SPDX-License-Identifier: MIT
"""Attention over sequences that are split between ranks: keys and values go round a ring.

    step          0         1         2         3          keys that rank 0 attends to, of ranks
    rank 0    K0 V0  .  K3 V3  .  K2 V2  .  K1 V1          0, 3, 2, 1: each step's block is sent on
    rank 1    K1 V1  .  K0 V0  .  K3 V3  .  K2 V2          to the next rank while it is attended to

A rank holds two blocks of keys at a time, however many ranks there are. The backward pass sends
keys and values round once more, and with them the sum of their gradients, one step behind: each
rank adds its part, in an order that depends on the owner alone, and the last step brings the sum
home. Keys that no further rank sees go no further, and the sum goes home from there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_choice,
    as_flag,
    as_number,
    check_tensors,
    renamed,
)
from .._library import log_dispatch
from ..ops._declare_checks import check_values
from ..ops._dtype import accumulate_dtype, under_autocast
from ..ops.attention._ops import ATTENTION
from ..ops.attention.attention import bounds_of
from . import _blocks
from ._blocks import ALL, CAUSAL, Keys, Options, Outcome, Sum, Window
from ._ranks import Group, Ranks, ranks_of
from .sequence import LAYOUTS, ZIGZAG, check_rows, lengths_of, refuse_uneven

_OP = "ring_attention"
_BACKENDS = dict.fromkeys(("auto", "reference"))


_Where = int | slice | None  # rows of a rank: a half (0 or 1), some in a row, or all


class _Part(NamedTuple):
    """Scores that one kernel computes: of which queries with which keys."""

    queries: _Where
    keys: _Where
    window: Window


class _Rows(NamedTuple):
    """The rows of a rank: of sequences of one length, or packed ones with offsets. A half is the
    first or the second chunk of each sequence."""

    offsets: Tensor | None = None
    halves: tuple[Tensor, Tensor] | None = None  # the rows of each half of packed sequences
    lengths: list[int] | None = None  # of packed sequences

    def take(self, x: Tensor, half: _Where, dim: int = -3) -> Tensor:
        if half is None:
            return x
        if self.halves is not None:
            return x.index_select(dim, self.halves[half])
        if isinstance(half, slice):
            return x.narrow(dim, half.start, half.stop - half.start)
        size = x.shape[dim] // 2
        return x.narrow(dim, half * size, size)

    def put(self, x: Tensor, half: _Where, part: Tensor, dim: int = -3) -> Tensor:
        """Writes the rows of a half into x."""
        if half is None:
            return part
        if self.halves is not None:
            return x.index_copy_(dim, self.halves[half], part)
        there = self.take(x, half, dim)
        if part.data_ptr() != there.data_ptr():  # a part may have been computed in its place
            there.copy_(part)
        return x

    def add(self, x: Tensor, half: _Where, part: Tensor) -> None:
        if half is None or self.halves is None:
            self.take(x, half).add_(part)
        else:
            x.index_add_(-3, self.halves[half], part.to(x.dtype))

    def offsets_of(self, half: _Where) -> Tensor | None:
        return self.offsets if half is None or self.offsets is None else self.offsets // 2

    def keys(self, k: Tensor, v: Tensor, half: _Where) -> Keys:
        return Keys(self.take(k, half), self.take(v, half), self.offsets_of(half))


class _Call(NamedTuple):
    """A call of the op, without its tensors."""

    ranks: Ranks
    chunks: int  # of a rank
    window: Window
    rows: _Rows
    options: Options

    def source(self, step: int) -> int:
        """The owner of the keys that a step attends to."""
        return (self.ranks.rank - step) % self.ranks.size

    def parts(self, step: int, length: int) -> list[_Part]:
        """The scores that a step computes, of ``length`` queries; none where no query may see the
        keys."""
        rank, source = self.ranks.rank, self.source(step)
        if self.has_bounds:
            return self._of_chunks(source, length // self.chunks)
        if source == rank or self.window == ALL:
            return [_Part(None, None, self.window)]
        if self.chunks == ZIGZAG:
            # The first chunk of an earlier rank lies before both of ours and its second behind
            # both; of a later rank, both lie between ours.
            return [_Part(None, 0, ALL) if source < rank else _Part(1, None, ALL)]
        return [_Part(None, None, ALL)] if source < rank else []

    def steps(self, length: int) -> int:
        """The steps after which no rank sees any of the keys that would come to it."""
        count, size = self.ranks.size, length // self.chunks
        if self.chunks == ZIGZAG or not self.has_bounds:
            return count  # the keys that come last lie beside a rank's own

        def is_seen(step: int) -> bool:
            """Keys come from ``step`` ranks before, or round the ring from ranks behind."""
            chunks = step, step - count
            return any(_seen(n * size, size, self.window) is not None for n in chunks)

        return max(filter(is_seen, range(count)), default=0) + 1

    @property
    def has_bounds(self) -> bool:
        """Whether the window hides more than later keys."""
        return self.window not in (ALL, CAUSAL)

    def _of_chunks(self, source: int, size: int) -> list[_Part]:
        """Each of our chunks with each of the keys' that it sees some of."""
        found = []
        for i, own in enumerate(self._places(self.ranks.rank)):
            for j, other in enumerate(self._places(source)):
                part = _seen((own - other) * size, size, self.window)
                if part is not None:
                    queries, keys, window = part
                    found.append(_Part(_moved(queries, i * size), _moved(keys, j * size), window))
        return found

    def _places(self, rank: int) -> list[int]:
        """The chunks of a rank, counted through the sequence."""
        return [rank, 2 * self.ranks.size - 1 - rank][: self.chunks]


def _moved(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def _seen(ahead: int, size: int, window: Window) -> tuple[slice, slice, Window] | None:
    """Which queries of a chunk see which keys of one that begins ``ahead`` rows before it, and the
    window of the kernel that is given those. Rows that would see nothing are left out, so that the
    diagonal is in the window again."""
    left = ahead - window[0] if window[0] >= 0 else -size  # bounds of key - query in the chunks
    right = ahead + window[1] if window[1] >= 0 else size
    if left >= size or right <= -size:
        return None
    shift = max(left, 0) + min(right, 0)  # at most one of them
    first, second = slice(0, size - abs(shift)), slice(abs(shift), size)
    queries, keys = (first, second) if shift > 0 else (second, first)
    farthest = size - abs(shift) - 1
    before, behind = (-1 if n >= farthest else n for n in (shift - left, right - shift))
    return queries, keys, (before, behind)


# ---- the ring -----------------------------------------------------------------------------------

_KEYS, _GRADIENTS = 0, 1  # tags of messages


class _Message(NamedTuple):
    """A buffer on its way to the next rank, and the one that comes from the rank before."""

    works: list[Any]
    arriving: Tensor

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.arriving


def _pass_on(buffer: Tensor, ranks: Ranks, tag: int, by: int = 1) -> _Message:
    """Sends a buffer ``by`` ranks on; nobody may write it until the message has been waited for."""
    if by % ranks.size == 0:
        return _Message([], buffer)
    arriving = torch.empty_like(buffer)
    after, before = (ranks.rank + by) % ranks.size, (ranks.rank - by) % ranks.size
    operations = [
        dist.P2POp(dist.isend, buffer, group=ranks.group, tag=tag, group_peer=after),
        dist.P2POp(dist.irecv, arriving, group=ranks.group, tag=tag, group_peer=before),
    ]
    return _Message(dist.batch_isend_irecv(operations), arriving)


class _Packed(NamedTuple):
    """Two tensors in one buffer, so that a step sends one message."""

    buffer: Tensor
    shapes: tuple[torch.Size, torch.Size]

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> _Packed:
        return cls(torch.cat([k.reshape(-1), v.reshape(-1)]), (k.shape, v.shape))

    def views(self) -> tuple[Tensor, Tensor]:
        first, second = self.shapes
        size = first.numel()
        return self.buffer[:size].view(first), self.buffer[size:].view(second)


def _keys_on(kv: _Packed, ranks: Ranks, is_last: bool) -> _Message:
    """Sends the keys of a step to the next rank; those of the last step have been wherever they are
    seen."""
    return _pass_on(kv.buffer, ranks, _KEYS, by=0 if is_last else 1)


# ---- both passes --------------------------------------------------------------------------------


def _forward(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> Sum:
    rows, kv, steps = call.rows, _Packed.of(k, v), call.steps(q.shape[-3])
    total: Sum | None = None
    for step in range(steps):
        message = _keys_on(kv, call.ranks, step + 1 == steps)
        for part in call.parts(step, q.shape[-3]):
            keys, offsets = rows.keys(*kv.views(), part.keys), rows.offsets_of(part.queries)
            queries = rows.take(q, part.queries)
            block = _blocks.forward(queries, offsets, keys, part.window, call.options)
            if total is None and part.queries is None:  # nothing has to be joined
                total = block
            else:
                total = _added(total or _blocks.nothing(q, v), block, part.queries, rows)
        kv = kv._replace(buffer=message.wait())
    return total or _blocks.nothing(q, v)


_TIME = (-3, -1, -1)  # the dimensions of time of a Sum


def _added(total: Sum, block: Sum, half: _Where, rows: _Rows) -> Sum:
    own = Sum(*(rows.take(x, half, dim) for x, dim in zip(total, _TIME, strict=True)))
    found = _blocks.joined(own, block)
    pairs = zip(total, found, _TIME, strict=True)
    return Sum(*(rows.put(x, half, y, dim) for x, y, dim in pairs))


def _backward(of: Outcome, q: Tensor, k: Tensor, v: Tensor, call: _Call) -> tuple[Tensor, ...]:
    kv, wide, steps = _Packed.of(k, v), accumulate_dtype(q), call.steps(q.shape[-3])
    dq = torch.zeros(q.shape, dtype=wide, device=q.device)
    dkv = kv._replace(buffer=torch.zeros_like(kv.buffer, dtype=wide))
    sums = _Message([], dkv.buffer)
    for step in range(steps):
        is_last = step + 1 == steps
        message, parts = _keys_on(kv, call.ranks, is_last), call.parts(step, q.shape[-3])
        blocks = [_of_block(of, q, kv, part, call) for part in parts]
        dkv = dkv._replace(buffer=sums.wait())
        for part, found in zip(parts, blocks, strict=True):
            halves = part.queries, part.keys, part.keys
            for x, half, gradient in zip((dq, *dkv.views()), halves, found, strict=True):
                call.rows.add(x, half, gradient)
        sums = _pass_on(dkv.buffer, call.ranks, _GRADIENTS, by=-step if is_last else 1)
        kv = kv._replace(buffer=message.wait())
    dk, dv = dkv._replace(buffer=sums.wait()).views()
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _of_block(
    of: Outcome, q: Tensor, kv: _Packed, part: _Part, call: _Call
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of one step's block."""
    rows, half = call.rows, part.queries
    dlse = None if of.dlse is None else rows.take(of.dlse, half, -1)
    seen = Outcome(
        rows.take(of.dout, half), dlse, rows.take(of.out, half), rows.take(of.lse, half, -1),
        rows.take(of.rest, half, -1),
    )  # fmt: skip
    keys = rows.keys(*kv.views(), part.keys)
    offsets = rows.offsets_of(half)
    return _blocks.backward(seen, rows.take(q, half), offsets, keys, part.window, call.options)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
        total = _forward(q, k, v, call)
        out, (lse, rest) = total.out.to(q.dtype), _blocks.rounded(total)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, rest)
        ctx.call = call
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, rest = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        return *_backward(Outcome(dout, dlse, out, lse, rest), q, k, v, ctx.call), None


# ---- packed sequences under a window ------------------------------------------------------------


def _attend(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
    """Sends keys round the ring: once, or once for each length of packed sequences."""
    lengths = call.rows.lengths
    if lengths is None or not call.has_bounds:
        found: tuple[Tensor, Tensor] = _RingAttention.apply(q, k, v, call)
        return found
    return _by_length(q, k, v, call._replace(rows=_Rows()), lengths)


def _by_length(
    q: Tensor, k: Tensor, v: Tensor, call: _Call, lengths: list[int]
) -> tuple[Tensor, Tensor]:
    """Attends to packed sequences of one length as to a batch: a kernel call takes one window, and
    chunks of other lengths would need others."""
    rows, batches = _sorted_by_length(lengths)
    rows = rows.to(q.device)
    sorted_parts = (x.index_select(0, rows).split([n * t for n, t in batches]) for x in (q, k, v))
    outs, lses = [], []
    for batch, *parts in zip(batches, *sorted_parts, strict=True):
        out, lse = _RingAttention.apply(*(x.unflatten(0, batch) for x in parts), call)
        outs.append(out.flatten(0, 1))
        lses.append(lse.transpose(0, 1).flatten(1))
    back = rows.argsort()
    return torch.cat(outs).index_select(0, back), torch.cat(lses, -1).index_select(-1, back)


def _sorted_by_length(lengths: list[int]) -> tuple[Tensor, list[tuple[int, int]]]:
    """The rows of packed sequences, those of one length behind each other, and the batches of these
    as (sequences, length). Where there are no rows, there is one batch of none."""
    starts = [0, *itertools.accumulate(lengths)]
    ordered = sorted(zip(lengths, starts[:-1], strict=True))
    rows = [torch.arange(start, start + length) for length, start in ordered]
    batches = [(n, length) for length, n in sorted(Counter(lengths).items()) if length]
    return torch.cat([torch.arange(0), *rows]), batches or [(0, 0)]


# ---- the function -------------------------------------------------------------------------------


def _rows_of(q: Tensor, cu_seqlens: Tensor | None, ranks: Ranks, chunks: int) -> _Rows:
    if cu_seqlens is None:
        if q.shape[1] % chunks:
            raise ArgumentValueError(
                f"{_OP}: q has {q.shape[1]} rows of each sequence, expected a multiple of {chunks}"
                " (the chunks of the layout)"
            )
        return _Rows()
    lengths = lengths_of(_OP, cu_seqlens, q.shape[0] * ranks.size)
    refuse_uneven(_OP, lengths, ranks, chunks)
    own = [length // ranks.size for length in lengths]
    return _Rows((cu_seqlens // ranks.size).to(q.device), _halves(own, q.device), own)


def _halves(lengths: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows of the first and of the second half of each packed sequence."""
    found: tuple[list[Tensor], list[Tensor]] = ([torch.arange(0)], [torch.arange(0)])
    start = 0
    for length in lengths:
        middle, end = start + length // 2, start + length
        found[0].append(torch.arange(start, middle))
        found[1].append(torch.arange(middle, end))
        start = end
    return torch.cat(found[0]).to(device), torch.cat(found[1]).to(device)


def _check_by_attention(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> None:
    """Refuses what attention refuses, on each rank before any sends."""
    keys = Keys(k, v, call.rows.offsets)
    arguments = _blocks.arguments_of(q, call.rows.offsets, keys, call.window, call.options)
    try:
        check_values(ATTENTION, ATTENTION.given(arguments))
    except (ArgumentValueError, ArgumentTypeError) as error:
        raise renamed(_OP, error) from None


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group = None,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    layout: str = "zigzag",
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens: Tensor | None = None,
    heads_first: bool = False,
    return_lse: bool = False,
    deterministic: bool = True,
    backend: str = "auto",
) -> Any:
    """Computes :func:`transformer_kernels.functional.attention` over sequences that are split by
    time between the ranks of a group: Ring Attention (Liu et al. 2023, arXiv:2310.01889).

    Each rank passes its tokens' ``q``, ``k`` and ``v``, all of one shape, and gets their results.
    Keys and values go round by ``isend`` and ``irecv`` while the kernels attend to those that are
    there; results are joined by their log-sum-exps in float32. A rank stores its own part and two
    blocks of keys. The backward pass, differentiable no further, sends the keys round again and
    their gradients behind them, in float32. Results have the same bits in every run.

    Args:
        q: (B, T / N, H, D), this rank's part of B sequences of T tokens (:func:`shard_sequence`);
            (total / N, H, D) with ``cu_seqlens``.
        k, v: the same rows of Hk and Hk heads; query head ``h`` reads head ``h // (H // Hk)``.
        group: a process group or a mesh of one dimension; by default all processes. Without
            :mod:`torch.distributed` there is one rank.
        causal: hide later keys.
        window: the number of keys before and after its own position that a query sees; -1 for no
            bound. What no query of a rank sees, it does not compute. In the contiguous layout
            under ``causal`` keys go no further than they are seen. With ``cu_seqlens``, sequences
            of one length are computed together.
        layout: ``"zigzag"``, which gives all ranks equal work under ``causal``, or
            ``"contiguous"``.
        scale: factor of the products; default ``D ** -0.5``.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for no cap.
        cu_seqlens: int32 (sequences + 1), the offsets of packed sequences before they are split;
            each is split by itself. It is read on the host.
        heads_first: tensors and result are (B, H, T / N, D) instead.
        return_lse: also return the log-sum-exp of the scores, (B, H, T / N) or (H, total / N),
            which is differentiable.
        deterministic: as of attention; here it is the default.
        backend: ``"auto"`` or ``"reference"``, the formula.

    Returns:
        (B, T / N, H, Dv), or a pair of that and the log-sum-exp.

    Raises:
        ArgumentValueError: a length does not split evenly, the group has not this process, or
            attention refuses a shape or number.
        ArgumentTypeError: an argument is of another type or dtype.

    >>> x = torch.randn(3, 2, 16, 4, 32)  # q, k and v of 16 tokens
    >>> q, k, v = tfk.parallel.shard_sequence(x, dim=2)
    >>> y = tfk.parallel.ring_attention(q, k, v, causal=True)
    >>> y.shape
    torch.Size([2, 16, 4, 32])
    """
    ranks = ranks_of(_OP, group)
    chunks = as_choice(_OP, "layout", layout, LAYOUTS)
    as_choice(_OP, "backend", backend, _BACKENDS)
    check_tensors(_OP, {"q": q, "k": k, "v": v})
    if as_flag(_OP, "heads_first", heads_first):
        q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    check_rows(_OP, q, k, v, cu_seqlens is not None)
    q, k, v = under_autocast(q.device.type, q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else as_number(_OP, "scale", scale)
    options = Options(scale, as_number(_OP, "softcap", softcap), deterministic, backend)
    rows = _rows_of(q, cu_seqlens, ranks, chunks)
    call = _Call(ranks, chunks, bounds_of(window, causal, _OP), rows, options)
    _check_by_attention(q, k, v, call)
    log_dispatch(f"{_OP}: {ranks.size} ranks, {ranks.backend}, {layout}, keys go round by isend")
    out, lse = _attend(q, k, v, call)
    out = out.transpose(-2, -3) if heads_first else out
    return (out, lse) if as_flag(_OP, "return_lse", return_lse) else out
