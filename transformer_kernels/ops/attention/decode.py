# SPDX-License-Identifier: MIT
"""Attention of the newest tokens to a cache of keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentValueError, as_flag, as_integer, as_number, check_tensors, translate
from ..._library import direct, require_backend
from ..._torch import any_autocast, is_eager
from .._public import overridable
from . import _decode_formula
from ._decode_ops import ATTENTION_WITH_KV_CACHE
from .attention import _default_scale, _statistics, bounds_of

_OP = "attention_with_kv_cache"
_eager = direct(ATTENTION_WITH_KV_CACHE)


def _run(q: Tensor, backend: str) -> Any:
    """Chooses the function that runs the raw op's arguments."""
    require_backend(_OP, backend, q)
    if backend == "reference":
        return _decode_formula.attention_with_kv_cache
    if backend not in ("auto", "cpu", "cuda"):
        raise ArgumentValueError(
            f"{_OP}: backend is {backend!r}, expected 'auto', 'cpu', 'cuda' or 'reference' (there"
            " is no such kernel yet)"
        )
    return _eager if is_eager() else ATTENTION_WITH_KV_CACHE


def _refuse_gradients(**tensors: Any) -> None:
    for name, x in tensors.items():
        if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
            raise ArgumentValueError(
                f"{_OP}: {name} requires a gradient, expected a call under torch.no_grad() (the op"
                " has no backward pass)"
            )


def _tokens_first(x: Any) -> Any:
    """(B, H, T, ...) as (B, T, H, ...); the op refuses tensors without such dimensions."""
    return x.transpose(1, 2) if isinstance(x, Tensor) and x.dim() >= 3 else x


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) else x


@overridable
def attention_with_kv_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    lengths: Tensor | int | None = None,
    page_table: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    interleaved: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    heads_first: bool = False,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Writes new keys and values into a cache, and computes attention of ``q`` to all that it then
    holds: a step of decoding, several rows to verify, or a chunk of a prompt.

    A sequence holds ``lengths[b]`` tokens before the call and ``total = lengths[b] + Tnew`` after
    it. Query i stands at position ``total - Tq + i``, the last query with the last key; new key t
    stands at ``lengths[b] + t``. The rotation, the causal mask, the window and the distances of
    ALiBi follow these positions. A query that sees no key gives 0, and a log-sum-exp of -inf (that
    of the sink, if there is one).

    The caches change in place, where new tokens belong and nowhere else; ``lengths`` and
    ``page_table`` are the caller's to change. Whatever lies behind a sequence's length is never
    read, and results do not depend on other sequences of the batch. There is no backward pass.

    Args:
        q: (B, Tq, H, D), of float32, float16 or bfloat16; D is 1 to 256. Query head ``h`` reads
            head ``h // (H // Hk)`` of the caches.
        k_cache: (B, capacity, Hk, D), or with a ``page_table`` (pages, page, Hk, D), where a page
            is a multiple of 16 tokens. Strides are free if the last one is 1. Of ``q``'s dtype, or
            int8 with scales.
        v_cache: likewise, with a head dim Dv.
        k: (B, Tnew, Hk, D), of ``q``'s dtype: keys to append.
        v: (B, Tnew, Hk, Dv): values to append.
        lengths: (B,), int32 or int64: the tokens of each sequence in the cache before ``k``; an int
            stands for all of them. By default the cache is full.
        page_table: (B, columns), int32: the pages of each sequence. Entries that no token needs are
            not read. Sequences may share pages, except those that get new tokens.
        cos, sin: (P, R / 2), of ``q``'s dtype or float32 (:func:`rope_tables`): ``q`` and ``k`` are
            rotated first, as :func:`rope` does.
        interleaved: pairs of numbers are neighbours, as in :func:`rope`.
        k_scale, v_scale: for caches of int8, float32 and of the cache's shape without its last
            dimension: a number is its integer times the scale of its token and head. Those of new
            tokens are written.
        causal: hide keys behind a query's position.
        window: the number of keys before and after its own position that a query sees; -1 for no
            bound.
        scale: factor of the products; default ``D ** -0.5``.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for no cap.
        alibi_slopes: (H,) or (B, H); ``slope * distance`` is subtracted from each score.
        sinks: (H,): for each query, a score that belongs to no key.
        heads_first: tensors and result are (B, H, T, D) instead, the caches (B, Hk, capacity, D) or
            (pages, Hk, page, D), and scales likewise.
        return_lse: also return the log-sum-exp of the scores, (B, H, Tq), float32.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"reference"``, the formula, which gathers
            the whole cache. Neither it nor CUDA checks lengths and pages: new tokens without a
            place are dropped, keys without one are not seen.

    Returns:
        (B, Tq, H, Dv), or a pair of that and the log-sum-exp.

    Raises:
        ArgumentValueError, ArgumentTypeError: the op cannot take an argument; the message names it.
            On the CPU this includes lengths that do not fit and pages that do not exist, and the
            caches are unchanged then.

    >>> k_cache, v_cache = torch.zeros(2, 3, 64, 4, 32)  # two caches: 3 sequences, 64 tokens
    >>> lengths = torch.tensor([0, 5, 17], dtype=torch.int32)
    >>> q, k, v = torch.randn(3, 1, 8, 32), torch.randn(3, 1, 4, 32), torch.randn(3, 1, 4, 32)
    >>> y = tfk.functional.attention_with_kv_cache(q, k_cache, v_cache, k, v, lengths=lengths)
    >>> y.shape
    torch.Size([3, 1, 8, 32])
    >>> torch.equal(k_cache[1, 5], k[1, 0])
    True
    """
    optional = {
        "k": k, "v": v, "page_table": page_table, "cos": cos, "sin": sin, "k_scale": k_scale,
        "v_scale": v_scale, "alibi_slopes": alibi_slopes, "sinks": sinks,
    }  # fmt: skip
    check_tensors(_OP, {"q": q, "k_cache": k_cache, "v_cache": v_cache, **optional}, *optional)
    _refuse_gradients(
        q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, cos=cos, sin=sin,
        alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    if as_flag(_OP, "heads_first", heads_first):
        q, k_cache, v_cache, k, v, k_scale, v_scale = map(
            _tokens_first, (q, k_cache, v_cache, k, v, k_scale, v_scale)
        )
    if any_autocast() and k_cache.is_floating_point():  # the cache says what its readers compute in
        q, k, v = (_cast(x, k_cache.dtype) for x in (q, k, v))
    left, right = bounds_of(window, causal, _OP)
    if lengths is not None and not isinstance(lengths, Tensor):
        lengths = torch.full(q.shape[:1], as_integer(_OP, "lengths", lengths), device=q.device)
    run = _run(q, backend)
    try:
        out, lse = run(
            q, k_cache, v_cache, k, v, lengths, page_table, cos, sin, k_scale, v_scale,
            _statistics(alibi_slopes, q), _statistics(sinks, q),
            as_flag(_OP, "interleaved", interleaved),
            _default_scale(q) if scale is None else as_number(_OP, "scale", scale), left, right,
            as_number(_OP, "softcap", softcap),
        )  # fmt: skip
    except (RuntimeError, TypeError) as error:
        raise translate(_OP, error) from None
    out = out.transpose(1, 2) if heads_first else out
    return (out, lse) if as_flag(_OP, "return_lse", return_lse) else out
