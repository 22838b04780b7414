# SPDX-License-Identifier: MIT
"""Scaled dot-product attention, with the modifications of scores that modern models use.

    s = softcap * tanh(scale * (q @ k.T) / softcap) + bias - slope * distance
    out = dropout(softmax(s where visible)) @ v

A query that sees no key gives 0, a log-sum-exp of -inf, and a gradient of 0.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    are_integers,
    as_flag,
    as_number,
    shown,
)
from ..._library import have_kernels_for
from ..._torch import any_autocast
from .._constants import refuse_gradient
from .._dtype import accumulate_dtype, under_autocast
from .._kinds import is_jagged, require_memory
from .._philox import fresh_seed
from .._public import overridable_as
from .._sharding import agreed
from . import _jagged
from ._ops import ATTENTION

_OP = "attention"


def is_served(x: Tensor) -> bool:
    """Whether our attention runs on the device of ``x``; elsewhere PyTorch's kernels beat our
    formula."""
    return x.is_cpu or have_kernels_for(x)


def _default_scale(q: Tensor) -> float:
    try:
        return float(q.shape[-1] ** -0.5)
    except (IndexError, RuntimeError, ZeroDivisionError):
        return 1.0  # for a tensor without head dim, which the op refuses by name


def bounds_of(window: Any, causal: Any, op: str = _OP) -> tuple[Any, Any]:
    """The bounds of a window, without what causality hides; refuses by name what is none."""
    if not are_integers(window, 2):
        raise ArgumentTypeError(
            f"{op}: window is {shown(window)}, expected two ints (left, right), -1 for no bound"
        )
    left, right = window
    return left, 0 if as_flag(op, "causal", causal) else right


def _statistics(x: Tensor | None, q: Tensor) -> Tensor | None:
    """Casts slopes and sinks to the arithmetic's dtype."""
    if not isinstance(x, Tensor):
        return x
    return x.to(accumulate_dtype(q)) if x.is_floating_point() else x


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    window: tuple[int, int],
    scale: float | None,
    softcap: float,
    dropout: float,
    top_left: bool,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    left, right = bounds_of(window, causal)
    if isinstance(q, Tensor):
        if type(dropout) is not float:
            dropout = as_number(_OP, "dropout", dropout)
        if any_autocast():
            q, k, v = under_autocast(q.device.type, q, k, v)
        if scale is None:
            scale = _default_scale(q)
        if dropout and seed is None:
            seed = agreed(fresh_seed(q.device), q)
        refuse_gradient(_OP, alibi_slopes=alibi_slopes)
        alibi_slopes, sinks = _statistics(alibi_slopes, q), _statistics(sinks, q)
    # Kernels would read the memory of a CausalBias, which was never written, as numbers.
    if bias is not None and type(bias) is not Tensor:
        require_memory(_OP, {"bias": bias})
    results: tuple[Tensor, Tensor] = ATTENTION.call(
        q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seed, scale, left,
        right, top_left, softcap, dropout, deterministic, backend,
    )  # fmt: skip
    return results


@overridable_as(_OP)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    top_left: bool = False,
    heads_first: bool = False,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """Computes attention of ``q`` (B, Tq, H, D) to ``k`` (B, Tk, Hk, D) and ``v`` (B, Tk, Hk, Dv).

    Strides are free if the last one is 1; other tensors are copied. Query head ``h`` reads head ``h
    // (H // Hk)`` of ``k`` and ``v``. D and Dv are 1 to 256. Jagged nested tensors run as
    :func:`attention_varlen`; results are nested with the offsets of ``q``.

    Args:
        q, k, v: tensors of one floating-point dtype; the arithmetic is in float32 (float64 for
            float64).
        causal: hide later keys. The last query is aligned with the last key; with ``top_left``, as
            in PyTorch, the first query with the first key.
        window: the number of keys before and after its own position that a query sees; -1 for no
            bound.
        scale: factor of the products; default ``D ** -0.5``.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for no cap.
        bias: added to the scores; broadcasts to (B, H, Tq, Tk), of ``q``'s dtype or float32, and
            may require a gradient.
        mask: boolean, true where a key is seen; broadcasts to (B, H, Tq, Tk).
        alibi_slopes: (H,) or (B, H); ``slope * distance`` is subtracted from each score.
        sinks: (H,): for each query, a score that belongs to no key; may require a gradient.
        dropout: the probability that a weight is dropped.
        seed: int64 seed and offset, on the CPU or on the device of ``q``. They determine which
            weights are dropped, identically on every device. Default: drawn from the generator of
            ``q``'s device.
        heads_first: tensors and result are (B, H, T, D) instead.
        return_lse: also return the log-sum-exp of the scores, (B, H, Tq), which is differentiable.
        deterministic: make the gradient of ``q`` the same bits in every run also where that costs
            time: on Hopper above a head dim of 64, for packed sequences and with features of
            scores. Elsewhere, and for all other results, it always is.
            :func:`torch.use_deterministic_algorithms` has the same effect.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"``, ``"fpga"`` or ``"reference"``, the
            formula. ``"auto"`` runs the kernels of ``q``'s device, or the formula if there are
            none. ``"triton"`` takes causal and boolean masks, and a bias without a gradient.
            ``"fpga"`` runs the forward pass, with a scale and a causal mask, on an int8 array
            (:mod:`transformer_kernels.fpga`).

    Returns:
        (B, Tq, H, Dv), or a pair of that and the log-sum-exp.

    Raises:
        ArgumentValueError, ArgumentTypeError: the op cannot take an argument; the message names it.

    >>> q = torch.randn(2, 16, 8, 32)  # batch, time, heads, dim
    >>> k, v = torch.randn(2, 2, 16, 2, 32)  # two heads, each for four of q
    >>> y = tfk.functional.attention(q, k, v, causal=True, window=(8, 0))
    >>> y.shape
    torch.Size([2, 16, 8, 32])
    """
    heads_first = as_flag(_OP, "heads_first", heads_first)
    return_lse = as_flag(_OP, "return_lse", return_lse)
    if type(q) is not Tensor and is_jagged(q) and is_jagged(k) and is_jagged(v):
        return _jagged.attention(
            attention_varlen, q, k, v, causal=causal, window=window, scale=scale, softcap=softcap,
            bias=bias, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks, dropout=dropout,
            seed=seed, top_left=top_left, heads_first=heads_first, return_lse=return_lse,
            deterministic=deterministic, backend=backend,
        )  # fmt: skip
    if heads_first:
        for name, x in (("q", q), ("k", k), ("v", v)):
            if isinstance(x, Tensor) and x.dim() != 4:
                raise ArgumentValueError(
                    f"attention: {name} has {x.dim()} dimensions, expected 4"
                    " (batch, heads, time, dim)"
                )
        q, k, v = (x.transpose(1, 2) if isinstance(x, Tensor) else x for x in (q, k, v))
    out, lse = _call(
        q, k, v, bias, mask, alibi_slopes, sinks, None, None, seed, causal, window, scale, softcap,
        dropout, top_left, deterministic, backend,
    )  # fmt: skip
    if heads_first:
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


@overridable_as(_OP)
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    top_left: bool = False,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """Computes :func:`attention` within sequences of different lengths, stored one after the other.

    Args:
        q, k, v: (total Tq, H, D), (total Tk, Hk, D), (total Tk, Hk, Dv).
        cu_seqlens_q: int32 (sequences + 1): the beginning of each sequence, and the end of the
            last. Rows past that are not read, and are 0 in the result.
        cu_seqlens_k: likewise for ``k`` and ``v``; default ``cu_seqlens_q``.

    The other arguments are those of :func:`attention`.

    Returns:
        (total Tq, H, Dv), or a pair of that and the log-sum-exp, (H, total Tq).

    >>> q, k, v = torch.randn(3, 12, 4, 32)  # sequences of 5 and 7 tokens
    >>> cu_seqlens = torch.tensor([0, 5, 12], dtype=torch.int32)
    >>> y = tfk.functional.attention_varlen(q, k, v, cu_seqlens, causal=True)
    >>> y.shape
    torch.Size([12, 4, 32])
    """
    return_lse = as_flag(_OP, "return_lse", return_lse)
    if cu_seqlens_q is None:
        raise ArgumentTypeError("attention: cu_seqlens_q is NoneType, expected a Tensor")
    if cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
    out, lse = _call(
        q, k, v, None, None, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seed, causal, window,
        scale, softcap, dropout, top_left, deterministic, backend,
    )  # fmt: skip
    return (out, lse) if return_lse else out
