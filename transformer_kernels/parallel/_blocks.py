# SPDX-License-Identifier: MIT
"""Attention to some of the keys, and the softmax that joins such blocks.

With statistics of each block, out = sum of exp(lse_i - lse) * out_i. The backward pass of a block
takes the statistics of all keys: p = exp(score - lse) is then the final weight, and the gradients
of the blocks add up to those of the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._library import have_kernels_for
from ..ops._dtype import accumulate_dtype
from ..ops.attention import _formula
from ..ops.attention._ops import ATTENTION


class Options(NamedTuple):
    """The options that all blocks of a call share."""

    scale: float
    softcap: float
    deterministic: bool
    backend: str


class Keys(NamedTuple):
    """Keys and values of one length, (B, T, Hk, D), or packed ones with their offsets."""

    k: Tensor
    v: Tensor
    offsets: Tensor | None


Window = tuple[int, int]  # the keys before and behind its own place that a query sees; -1 for all
ALL, CAUSAL = (-1, -1), (-1, 0)


class Sum(NamedTuple):
    """A softmax's sum over the keys so far: the result in the arithmetic's dtype, and lse = top +
    rest, where ``top`` holds what is far from 0 and ``rest`` what rounding would take from it."""

    out: Tensor  # (..., T, H, D)
    top: Tensor  # (..., H, T)
    rest: Tensor


def arguments_of(
    q: Tensor, offsets: Tensor | None, keys: Keys, window: Window, options: Options
) -> tuple[Any, ...]:
    """The arguments of the raw op."""
    return (
        q, keys.k, keys.v, None, None, None, None, offsets, keys.offsets, None, options.scale,
        *window, False, options.softcap, 0.0, options.deterministic,
    )  # fmt: skip


def forward(q: Tensor, offsets: Tensor | None, keys: Keys, window: Window, options: Options) -> Sum:
    arguments = arguments_of(q, offsets, keys, window, options)
    if options.backend == "reference":
        out, lse = _formula.forward(*arguments)
        rest = torch.zeros_like(lse)
    else:
        out, lse, rest = ATTENTION.raw.forward(*arguments)
    return Sum(out.to(accumulate_dtype(q)), lse, rest)


def nothing(q: Tensor, v: Tensor) -> Sum:
    """The sum over no keys."""
    wide = accumulate_dtype(q)
    statistics = q.new_zeros((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=wide)
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]), dtype=wide)
    return Sum(out, torch.full_like(statistics, -torch.inf), statistics)


def of_rows(x: Tensor) -> Tensor:
    """Statistics (..., H, T) as factors of rows (..., T, H, D)."""
    return x.transpose(-1, -2).unsqueeze(-1)


def joined(a: Sum, b: Sum) -> Sum:
    """The sum over the keys of both, in the memory of ``a.out``, which is the longest to pass over.
    Rows that saw none have an lse of -inf, and stay 0."""
    top = torch.maximum(a.top, b.top)
    base = top.masked_fill(top == -torch.inf, 0.0)
    of_a, of_b = ((x.top - base + x.rest).exp() for x in (a, b))
    total = of_a + of_b
    seen = total.masked_fill(top == -torch.inf, 1.0)
    out = a.out.mul_(of_rows(of_a / seen)).addcmul_(b.out, of_rows(of_b / seen))
    return Sum(out, top, seen.log())


def rounded(total: Sum) -> tuple[Tensor, Tensor]:
    """The log-sum-exp, and the error that its rounding makes."""
    lse = total.top + total.rest
    return lse, (total.rest - (lse - total.top)).nan_to_num(0.0, 0.0, 0.0)


class Outcome(NamedTuple):
    """The results that the backward pass starts from, and their gradients."""

    dout: Tensor
    dlse: Tensor | None
    out: Tensor
    lse: Tensor
    rest: Tensor


def backward(
    of: Outcome, q: Tensor, offsets: Tensor | None, keys: Keys, window: Window, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of a block, where the statistics are those of all keys."""
    arguments = arguments_of(q, offsets, keys, window, options)
    run = _formula.backward if options.backend == "reference" else ATTENTION.raw.backward
    if run is _formula.backward or not have_kernels_for(q):
        of = _of_own_softmax(of, arguments)
    dq, dk, dv = run(*of, *arguments, False, False)[:3]
    return dq, dk, dv


def _of_own_softmax(of: Outcome, arguments: tuple[Any, ...]) -> Outcome:
    """The formula normalises by the block's own keys: its rows weigh exp(lse of them - lse)."""
    own = _formula.forward(*arguments)[1]
    share = torch.where(own == -torch.inf, 0.0, (own - of.lse - of.rest).exp())
    dlse = None if of.dlse is None else of.dlse * share
    return of._replace(dout=(of.dout * of_rows(share)).to(of.dout.dtype), dlse=dlse)
