# SPDX-License-Identifier: MIT
"""Attention with one feature each: how we run it, who else has it, and the reference.

What a feature needs beside q, k and v is made once: nothing of it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals.attention import (
    flash_attention_3,
    flash_attention_4,
    flex_attention,
    packed_flash_attention_3,
    packed_flash_attention_4,
    packed_in_torch,
)
from transformer_kernels.measure.case import Function
from transformer_kernels.ops import _philox
from transformer_kernels.ops.attention._stock import in_torch
from transformer_kernels.testing import reference

_SEEN_KEYS = 1024  # of a sliding window
_CAP = 30.0
_HIDDEN_BELOW = -0.84  # a fifth of normal numbers
_DROPPED = 0.1
_SEQUENCES = 4  # packed into a row of T

Options = Callable[[Tensor], dict[str, Any]]  # of q
Seen = Callable[..., Tensor]  # (batch, head, query, key) -> whether the query sees the key


@dataclass(frozen=True)
class Feature:
    name: str
    functions: Mapping[str, Function]  # provider -> differentiable (q, k, v)
    reference: Function
    share: Callable[[int], float] = field(default=lambda _: 1.0)  # of T x T scores that are left
    verifies_first_heads: bool = False  # where a result depends on its place


# ---- what features need -------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _noise(time: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(T, T), numbers that every dtype holds."""
    generator = torch.Generator(device).manual_seed(time)
    return torch.randn(time, time, generator=generator, device=device).bfloat16().to(dtype)


@lru_cache(maxsize=2)
def _visible(time: int, device: torch.device) -> Tensor:
    return _noise(time, torch.bfloat16, device) > _HIDDEN_BELOW


@lru_cache(maxsize=2)
def _slopes(heads: int, device: torch.device) -> Tensor:
    """From 2**-8 on, the last head's: so that a head has the same among the last ones alone."""
    return torch.exp2(-8.0 + torch.arange(heads - 1, -1, -1, device=device).clamp(max=7))


@lru_cache(maxsize=2)
def _sinks(heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(heads, dtype=dtype, device=device)


@lru_cache(maxsize=1)
def _seed() -> Tensor:
    return torch.tensor([2, 4])


def _cuts(time: int) -> list[int]:
    """Where the sequences of a row begin and end: at random places, the same in every row."""
    generator = torch.Generator().manual_seed(time)
    inner = torch.randperm(time - 1, generator=generator)[: _SEQUENCES - 1] + 1
    return [0, *sorted(inner.tolist()), time]


@lru_cache(maxsize=2)
def _offsets(batch: int, time: int, device: torch.device) -> Tensor:
    begins = [row * time + cut for row in range(batch) for cut in _cuts(time)[:-1]]
    return torch.tensor([*begins, batch * time], dtype=torch.int32, device=device)


@lru_cache(maxsize=2)
def _sequence_of(time: int, device: torch.device) -> Tensor:
    lengths = [end - begin for begin, end in pairwise(_cuts(time))]
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(device)


def _seen_by_window(_: int, __: torch.device) -> Seen:
    return lambda _b, _h, query, key: (key <= query) & (key > query - _SEEN_KEYS)


def _seen_by_mask(time: int, device: torch.device) -> Seen:
    visible = _visible(time, device)
    return lambda _b, _h, query, key: visible[query, key]


def _seen_in_sequence(time: int, device: torch.device) -> Seen:
    number = _sequence_of(time, device)
    return lambda _b, _h, query, key: (key <= query) & (number[query] == number[key])


@lru_cache(maxsize=2)
def _block_mask(seen: Callable[[int, torch.device], Seen], time: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(seen(time, device), None, None, time, time, device=device)


@lru_cache(maxsize=2)
def _capped_score() -> Callable[..., Tensor]:
    return lambda score, _b, _h, _query, _key: _CAP * torch.tanh(score / _CAP)


@lru_cache(maxsize=2)
def _sloped_score(heads: int, device: torch.device) -> Callable[..., Tensor]:
    slopes = _slopes(heads, device)
    return lambda score, _b, h, query, key: score - slopes[h] * (query - key).abs()


@lru_cache(maxsize=2)
def _biased_score(time: int, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensor]:
    bias = _noise(time, dtype, device)
    return lambda score, _b, _h, query, key: score + bias[query, key]


# ---- who runs them ------------------------------------------------------------------------------


def _with(run: Function, options: Options) -> Function:
    """The function with the feature's own arguments, which it gets at each call."""
    return partial(_run_with, run, options)


def _run_with(run: Function, options: Options, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = run(q, k, v, **options(q))
    return out


def _exactly(options: Options) -> Function:
    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.attention(q, k, v, **options(q))[0]

    return exact


def _feature(
    name: str,
    options: Options,
    share: Callable[[int], float] = lambda _: 1.0,
    **rivals: Function,
) -> Feature:
    """Where our options are those of the reference."""
    return Feature(name, {"ours": _with(F.attention, options), **rivals}, _exactly(options), share)


def _flex(options: Options) -> Function:
    return _with(flex_attention, options)


def _flex_where(seen: Callable[[int, torch.device], Seen]) -> Function:
    return _flex(lambda q: {"block_mask": _block_mask(seen, q.shape[1], q.device)})


def _window_share(time: int) -> float:
    seen = min(_SEEN_KEYS, time)
    return (seen * time - seen * (seen - 1) / 2) / time**2


def _flash(**options: Any) -> dict[str, Function]:
    return {
        name: _with(run, lambda _: options)
        for name, run in (("fa3", flash_attention_3), ("fa4", flash_attention_4))
    }


def _by_sinks(q: Tensor) -> dict[str, Tensor]:
    return {"learnable_sink": _sinks(q.shape[2], torch.bfloat16, q.device)}


# ---- dropout ------------------------------------------------------------------------------------


def _drop(_: Tensor) -> dict[str, Any]:
    return {"dropout": _DROPPED, "seed": _seed()}


def _exactly_dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The reference of the first heads, whose rows come first."""
    time, heads = q.shape[1:3]
    rows = torch.arange(heads * time, device=q.device).view(1, heads, time)
    keep = _philox.factors(rows, time, time, _DROPPED, _seed())
    return reference.attention(q, k, v, keep=keep)[0]


# ---- packed sequences ---------------------------------------------------------------------------


def _packed(run: Function) -> Function:
    """The rows of all batches one after another, with where sequences begin and end."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, time = q.shape[:2]
        longest = max(end - begin for begin, end in pairwise(_cuts(time)))
        out: Tensor = run(
            *(x.flatten(0, 1) for x in (q, k, v)), _offsets(batch, time, q.device), longest
        )
        return out.unflatten(0, (batch, time))

    return call


def _pack_ours(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, _: int) -> Any:
    return F.attention_varlen(q, k, v, offsets, causal=True)


def _exactly_packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = [slice(*cut) for cut in pairwise(_cuts(q.shape[1]))]
    outs = [reference.attention(q[:, r], k[:, r], v[:, r], window=(-1, 0))[0] for r in rows]
    return torch.cat(outs, 1)


def _packed_share(time: int) -> float:
    """Causal: half of each sequence's square."""
    return sum((end - begin) ** 2 for begin, end in pairwise(_cuts(time))) / (2 * time**2)


FEATURES = (
    _feature(
        "windowed_attention",
        lambda _: {"window": (_SEEN_KEYS - 1, 0)},
        _window_share,
        flex=_flex_where(_seen_by_window),
        **_flash(causal=True, window_size=(_SEEN_KEYS - 1, 0)),
    ),
    _feature(
        "sink_attention",
        lambda q: {"sinks": _sinks(q.shape[2], torch.float32, q.device)},
        fa4=_with(flash_attention_4, _by_sinks),
    ),
    _feature(
        "alibi_attention",
        lambda q: {"alibi_slopes": _slopes(q.shape[2], q.device)},
        flex=_flex(lambda q: {"score_mod": _sloped_score(q.shape[2], q.device)}),
    ),
    _feature(
        "softcap_attention",
        lambda _: {"softcap": _CAP},
        flex=_flex(lambda _: {"score_mod": _capped_score()}),
        **_flash(softcap=_CAP),
    ),
    _feature(
        "masked_attention",
        lambda q: {"mask": _visible(q.shape[1], q.device)},
        torch=_with(in_torch, lambda q: {"attn_mask": _visible(q.shape[1], q.device)}),
        flex=_flex_where(_seen_by_mask),
    ),
    _feature(
        "biased_attention",
        lambda q: {"bias": _noise(q.shape[1], q.dtype, q.device)},
        torch=_with(in_torch, lambda q: {"attn_mask": _noise(q.shape[1], q.dtype, q.device)}),
        flex=_flex(lambda q: {"score_mod": _biased_score(q.shape[1], q.dtype, q.device)}),
    ),
    Feature(
        "dropout_attention",
        {"ours": _with(F.attention, _drop)},
        _exactly_dropped,
        verifies_first_heads=True,
    ),
    Feature(
        "packed_attention",
        {
            "ours": _packed(_pack_ours),
            "flash": _packed(packed_in_torch),
            "fa3": _packed(packed_flash_attention_3),
            "fa4": _packed(packed_flash_attention_4),
            "flex": _flex_where(_seen_in_sequence),
        },
        _exactly_packed,
        _packed_share,
    ),
)
