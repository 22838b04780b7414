# SPDX-License-Identifier: MIT
"""Attention in PyTorch operations, differentiable any number of times.

Both functions have the signatures of the raw ops, and store all scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from ..._torch import differs_between_samples
from .. import _philox
from .._dtype import accumulate_dtype
from .._heads import in_the_order_of


class Options(NamedTuple):
    """The options that are not tensors, in schema order, without the one that only kernels read:
    whether gradients have to be deterministic."""

    scale: float
    window_left: int
    window_right: int
    top_left: bool
    softcap: float
    dropout: float


class Inputs(NamedTuple):
    """The tensors of one call, in the order of the schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seed: Tensor | None


class _Scores(NamedTuple):
    """The scores of a batch of sequences of one length, in the arithmetic's dtype."""

    q: Tensor  # (B, H, Tq, D)
    k: Tensor  # each head repeated for its query heads
    z: Tensor  # (B, H, Tq, Tk), -inf where hidden
    hidden: Tensor  # its boolean mask
    slope: Tensor | None  # of the soft cap
    factors: Tensor | None  # of dropout


class _Softmax(NamedTuple):
    p: Tensor  # weights of the keys
    of_sink: Tensor  # (B, H, Tq, 1), or (B, H, Tq, 0) without sinks
    lse: Tensor


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, Hk, D) as (B, H, T, D)."""
    x = x.to(accumulate_dtype(x)).transpose(1, 2)
    group = heads // x.shape[1] if x.shape[1] else 1
    return x if group == 1 else x.repeat_interleave(group, 1)


def _of_kv_heads(x: Tensor, kv_heads: int) -> Tensor:
    """Sums (B, H, T, D) over the query heads that share a key head, to (B, T, Hk, D)."""
    group = x.shape[1] // max(kv_heads, 1)
    grouped = x.reshape(x.shape[0], kv_heads, group, *x.shape[2:])
    return grouped.sum(2).transpose(1, 2)


def _places(queries: int, keys: int, top_left: bool, device: torch.device) -> Tensor:
    """The distance of each key from the diagonal of each query; positive in the future."""
    shift = 0 if top_left else keys - queries
    diagonal = torch.arange(queries, device=device).unsqueeze(-1) + shift
    return torch.arange(keys, device=device) - diagonal


def _scores(inputs: Inputs, options: Options, rows: Tensor, pitch: int) -> _Scores:
    q, k = (_by_heads(x, inputs.q.shape[2]) for x in (inputs.q, inputs.k))
    places = _places(q.shape[2], k.shape[2], options.top_left, q.device)
    z = (q @ k.transpose(-1, -2)) * options.scale
    slope = None
    if options.softcap:
        tanh = (z / options.softcap).tanh()
        z, slope = tanh * options.softcap, 1 - tanh * tanh
    if inputs.alibi_slopes is not None:
        slopes = inputs.alibi_slopes.to(z.dtype).unsqueeze(-1).unsqueeze(-1)
        z = z - slopes * places.abs()
    if inputs.bias is not None:
        z = z + inputs.bias.to(z.dtype)
    hidden = torch.zeros_like(places, dtype=torch.bool)
    if options.window_left >= 0:
        hidden = hidden | (places < -options.window_left)
    if options.window_right >= 0:
        hidden = hidden | (places > options.window_right)
    if inputs.mask is not None:
        hidden = hidden | ~inputs.mask
    hidden = hidden | (z == -torch.inf)
    factors = None
    if options.dropout:
        assert inputs.seed is not None
        factors = _philox.factors(rows, k.shape[2], pitch, options.dropout, inputs.seed)
        factors = factors.to(z.dtype)
    return _Scores(q, k, z.masked_fill(hidden, -torch.inf), hidden, slope, factors)


def _log_sum_exp(z: Tensor) -> Tensor:
    """A log-sum-exp whose gradient exp(z - lse) has the sum 1, also for scores far from 0."""
    if not z.shape[-1]:
        return z.logsumexp(-1)
    top = z.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    return top.squeeze(-1) + (z - top).logsumexp(-1)


def _softmax(s: _Scores, sinks: Tensor | None) -> _Softmax:
    """A softmax that subtracts the largest score first, as PyTorch's does: for scores of 1e8 and
    more exp(z - lse) would not sum to 1, because lse is rounded."""
    z = s.z
    if sinks is not None:
        sinks = sinks.to(z.dtype).view(1, -1, 1, 1)
        z = torch.cat([z, sinks.expand(*z.shape[:-1], 1)], -1)
    # Masked elements leave the graph, so that no NaN of theirs reaches a gradient.
    dead = (z == -torch.inf).all(-1, keepdim=True)
    z = z.masked_fill(dead, 0.0)
    p = z.softmax(-1).masked_fill(dead, 0.0)
    lse = _log_sum_exp(z).masked_fill(dead.squeeze(-1), -torch.inf)
    keys = s.hidden.shape[-1]
    return _Softmax(p[..., :keys].masked_fill(s.hidden, 0.0), p[..., keys:], lse)


def _dense_forward(
    inputs: Inputs, options: Options, rows: Tensor, pitch: int
) -> tuple[Tensor, Tensor]:
    s = _scores(inputs, options, rows, pitch)
    p, _, lse = _softmax(s, inputs.sinks)
    if s.factors is not None:
        p = p * s.factors
    out = p @ _by_heads(inputs.v, inputs.q.shape[2])
    return in_the_order_of(out.transpose(1, 2).to(inputs.q.dtype), inputs.q), lse


def _dense_backward(
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    inputs: Inputs,
    options: Options,
    rows: Tensor,
    pitch: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns dq, dk, dv, dz (B, H, Tq, Tk) and the terms of dsinks (B, H, Tq, 1 or 0)."""
    s = _scores(inputs, options, rows, pitch)
    heads, kv_heads = inputs.q.shape[2], inputs.k.shape[2]
    g = _by_heads(dout, heads)
    delta = (g * _by_heads(out, heads)).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    p, of_sink, _ = _softmax(s, inputs.sinks)
    dp = g @ _by_heads(inputs.v, heads).transpose(-1, -2)
    dropped = p
    if s.factors is not None:
        dropped, dp = p * s.factors, dp * s.factors
    dz = p * (dp - delta.unsqueeze(-1))
    ds = (dz if s.slope is None else dz * s.slope) * options.scale
    dq = (ds @ s.k).transpose(1, 2)
    dk = _of_kv_heads(ds.transpose(-1, -2) @ s.q, kv_heads)
    dv = _of_kv_heads(dropped.transpose(-1, -2) @ g, kv_heads)
    return dq, dk, dv, dz, -of_sink * delta.unsqueeze(-1)


# ---- sequences of different lengths -------------------------------------------------------------


def _row_places(inputs: Inputs) -> Tensor:
    """The position of every query in the log-sum-exp."""
    *batch, time, heads, _ = inputs.q.shape
    return torch.arange(math.prod((*batch, heads, time)), device=inputs.q.device).view(
        *batch, heads, time
    )


class _Sequence(NamedTuple):
    number: int
    queries: slice
    keys: slice


def _sequences(inputs: Inputs) -> Iterator[_Sequence]:
    assert inputs.cu_seqlens_q is not None
    assert inputs.cu_seqlens_k is not None
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if differs_between_samples(getattr(inputs, name)):
            raise ArgumentValueError(
                f"attention: {name} differs between the samples of torch.func.vmap, expected"
                " numbers that all of them share"
            )
    q_at, k_at = inputs.cu_seqlens_q.tolist(), inputs.cu_seqlens_k.tolist()
    for b in range(len(q_at) - 1):
        yield _Sequence(b, slice(q_at[b], q_at[b + 1]), slice(k_at[b], k_at[b + 1]))


def _one(inputs: Inputs, at: _Sequence) -> Inputs:
    """One sequence as a batch of size one."""
    slopes = inputs.alibi_slopes
    if slopes is not None and slopes.dim() == 2 and slopes.shape[0] > 1:
        slopes = slopes[at.number]
    return inputs._replace(
        q=inputs.q[at.queries].unsqueeze(0),
        k=inputs.k[at.keys].unsqueeze(0),
        v=inputs.v[at.keys].unsqueeze(0),
        alibi_slopes=slopes,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
    )


def _joined(parts: list[Tensor], like: Tensor, rows: int) -> Tensor:
    """Joins the rows of all sequences, followed by zeros for rows that belong to none."""
    shape = parts[0].shape[1:] if parts else like.shape[1:]
    missing = rows - sum(part.shape[0] for part in parts)
    return torch.cat([*parts, like.new_zeros((missing, *shape))])


def _varlen_forward(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor]:
    places, pitch = _row_places(inputs), inputs.k.shape[0]
    outs, lses = [], []
    for at in _sequences(inputs):
        out, lse = _dense_forward(_one(inputs, at), options, places[:, at.queries], pitch)
        outs.append(out[0])
        lses.append(lse[0])
    rows = inputs.q.shape[0]
    dim = inputs.v.shape[-1]
    joined = _joined(outs, inputs.q[..., :1].expand(*inputs.q.shape[:-1], dim), rows)
    missing = rows - sum(lse.shape[-1] for lse in lses)
    tail = inputs.q.new_full(
        (inputs.q.shape[1], missing), -torch.inf, dtype=accumulate_dtype(inputs.q)
    )
    return joined, torch.cat([*lses, tail], -1)


def _varlen_backward(
    dout: Tensor, dlse: Tensor | None, out: Tensor, inputs: Inputs, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns dq, dk, dv and dsinks."""
    places, pitch = _row_places(inputs), inputs.k.shape[0]
    found: tuple[list[Tensor], ...] = ([], [], [])
    dsinks = out.new_zeros((inputs.q.shape[1],), dtype=accumulate_dtype(out))
    for at in _sequences(inputs):
        *gradients, _, terms = _dense_backward(
            dout[at.queries].unsqueeze(0),
            None if dlse is None else dlse[:, at.queries],
            out[at.queries].unsqueeze(0),
            _one(inputs, at),
            options,
            places[:, at.queries],
            pitch,
        )
        for parts, gradient in zip(found, gradients, strict=True):
            parts.append(gradient[0])
        dsinks = dsinks + terms.sum((0, 2, 3))
    rows, keys = inputs.q.shape[0], inputs.k.shape[0]
    return (
        _joined(found[0], inputs.q, rows),
        _joined(found[1], inputs.k, keys),
        _joined(found[2], inputs.v, keys),
        dsinks,
    )


# ---- the raw ops --------------------------------------------------------------------------------


_TENSORS = len(Inputs._fields)
_SHARED = _TENSORS + len(Options._fields)


def split(arguments: tuple[Any, ...]) -> tuple[Inputs, Options, tuple[Any, ...]]:
    """Splits the arguments of a raw op into tensors, options, and the flags that follow."""
    inputs, options = Inputs(*arguments[:_TENSORS]), Options(*arguments[_TENSORS:_SHARED])
    return inputs, options, arguments[_SHARED:]


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Returns the output, in q's dtype, and the log-sum-exp."""
    inputs, options, _ = split(arguments)
    if inputs.cu_seqlens_q is not None:
        return _varlen_forward(inputs, options)
    return _dense_forward(inputs, options, _row_places(inputs), inputs.k.shape[1])


def statistics(values: Mapping[str, Any]) -> Tensor:
    """lse_rest, the rounding error of lse, which only the kernels' backward pass needs: zeros
    here."""
    return torch.zeros_like(values["lse"])


def bias_shape(bias: Tensor) -> tuple[int, ...]:
    """The shape of the bias's gradient, which has 4 dimensions."""
    return (1,) * (4 - bias.dim()) + tuple(bias.shape)


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    _lse: Tensor,
    _lse_rest: Tensor,
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns dq, dk, dv, and the gradients of bias and sinks, without elements where not asked
    for.

    Recomputes the softmax; neither lse nor its rounding error is read.
    """
    inputs, options, (_, need_dbias, need_dsinks) = split(arguments)
    dbias = dsinks = inputs.q.new_empty(0)
    if inputs.cu_seqlens_q is not None:
        dq, dk, dv, of_sinks = _varlen_backward(dout, dlse, out, inputs, options)
    else:
        dq, dk, dv, dz, terms = _dense_backward(
            dout, dlse, out, inputs, options, _row_places(inputs), inputs.k.shape[1]
        )
        if need_dbias:
            assert inputs.bias is not None
            dbias = dz.sum_to_size(bias_shape(inputs.bias))
        of_sinks = terms.sum((0, 2, 3))
    if need_dsinks:
        dsinks = of_sinks
    dq, dk, dv = (
        in_the_order_of(gradient.to(x.dtype), x)
        for gradient, x in zip((dq, dk, dv), inputs[:3], strict=True)
    )
    return dq, dk, dv, dbias, dsinks
