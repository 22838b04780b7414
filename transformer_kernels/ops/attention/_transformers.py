# SPDX-License-Identifier: MIT
"""Attention by the interface of Hugging Face's Transformers, which is not imported here."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from ._arguments import MOST_DIM
from .attention import attention, attention_varlen, is_served

# Arguments of models whose scores are not those of dense attention, and what they mean. Ignoring
# them would give wrong numbers without a word.
_REFUSED = {
    "indices": "keys that an index chose",
    "block_indices": "blocks of keys that an index chose",
    "sinks": "a sink of each query; one of each head is s_aux",
}
_BAND = "_transformer_kernels_band"


class Band(NamedTuple):
    """The visible keys of a mask that is the same for all sequences, as arguments of
    :func:`attention`: those before a query, and no more of them than the window holds."""

    window: tuple[int, int]
    top_left: bool  # whether the first query is at the first key; else the last is at the last


def mark_band(mask: Tensor, band: Band) -> Tensor:
    """Notes on ``mask`` that it is a band, so that :func:`attend` need not read it.

    The note is the tensor object's, in the version that it has now: another tensor that is made of
    it has none, and none holds after a change in place. Tensors without versions get none.
    """
    if not mask.is_inference():
        setattr(mask, _BAND, (mask._version, band))
    return mask


def _band_of(mask: Tensor, queries: int, keys: int) -> Band | None:
    version, band = getattr(mask, _BAND, (None, None))
    if band is None or mask._version != version or mask.shape[-2:] != (queries, keys):
        return None
    return band


def why_not_ours(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """The reason why :func:`attend` cannot take a call; None where it can."""
    if not is_served(query) or key.device != query.device:
        return "the device"
    if not (1 <= query.shape[-1] <= MOST_DIM and 1 <= value.shape[-1] <= MOST_DIM):
        return "the head dim"
    return None if query.shape[0] == key.shape[0] else "a broadcast batch"


def refuse_unknown_scores(options: dict[str, Any]) -> None:
    """Raises where a model passes scores that no argument of :func:`attend` describes."""
    for name, meaning in _REFUSED.items():
        if options.get(name) is not None:
            raise ArgumentValueError(
                f"attention: {name} is given, expected None ({meaning}; take"
                " attn_implementation='eager')"
            )


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes attention of (B, H, Tq, D) to (B, Hk, Tk, D) as (B, Tq, H, Dv) in one kernel, which
    reads the heads where the projections wrote them.

    Without a mask, causal attention aligns the first query with the first key: a cache's keys
    beyond the last query do not exist yet. A single query sees all keys.

    Args:
        module: its ``is_causal`` counts where the argument is None.
        attention_mask: boolean, true where a key is seen, or numbers that are added to the scores;
            broadcasts to (B, H, Tq, Tk).
        position_bias: added to the scores; may require a gradient.
        softcap: scores become ``softcap * tanh(score / softcap)`` before masks.
        s_aux: (H,): a score of each head that belongs to no key (a sink).
        sliding_window: the number of keys that a causal query sees, itself included, where no mask
            says so.
        cu_seq_lens_q: beginnings of sequences that are packed into one row of the batch; with them
            no mask is read. ``cu_seq_lens_k`` likewise.

    Raises:
        ArgumentValueError: the model chooses keys by an index, or has a sink of each query.
    """
    refuse_unknown_scores(options)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    seen: dict[str, Any] = {
        "scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux, "dropout": dropout,
    }  # fmt: skip
    causal_window = (sliding_window - 1, 0) if sliding_window else (-1, 0)
    if cu_seq_lens_q is not None and position_bias is None and len(q) == 1:
        if causal:
            seen |= {"causal": True, "window": causal_window}
        ends = None if cu_seq_lens_k is None else cu_seq_lens_k.int()
        out = attention_varlen(q[0], k[0], v[0], cu_seq_lens_q.int(), ends, **seen)
        return out.unsqueeze(0), None
    seen |= _visible(q, k, attention_mask, causal, causal_window)
    if position_bias is not None:
        seen["bias"] = _sum(position_bias, seen.get("bias"))
    if seen.get("bias") is not None:
        seen["bias"] = _as_bias(seen["bias"], query)
    return attention(q, k, v, **seen), None


def _visible(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, causal_window: tuple[int, int]
) -> dict[str, Any]:
    """The keys that queries see, as arguments of :func:`attention`."""
    if mask is None:
        if not causal or q.shape[1] == 1:
            return {}
        return {"causal": True, "window": causal_window, "top_left": True}
    band = _band_of(mask, q.shape[1], k.shape[1])
    if band is not None:
        return {"causal": True, **band._asdict()}
    return {"mask" if mask.dtype is torch.bool else "bias": mask}


def _sum(position_bias: Tensor, mask: Tensor | None) -> Tensor:
    return position_bias if mask is None else position_bias + mask


def _as_bias(bias: Tensor, query: Tensor) -> Tensor:
    """Casts to a dtype that the op takes: float32, or that of the queries."""
    keeps = bias.dtype is torch.float32 and query.dtype is not torch.float64
    return bias if keeps else bias.to(query.dtype)
