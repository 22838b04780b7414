# SPDX-License-Identifier: MIT
"""The raw ops: C++ kernels on the CPU, the formula elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..._errors import check_same_device
from ..._library import direct, raw_op
from .._dtype import accumulate_dtype
from .._kinds import on_memory
from . import _formula

ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, Tensor? alibi_slopes, "
    "Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seed, float scale, "
    "int window_left, int window_right, bool top_left, float softcap, float dropout"
)


class Kernels(NamedTuple):
    """One backend: the signatures are those of the raw ops."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


def fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    seed = rest[6]
    far_seed = None if seed is None or seed.is_cpu else seed
    check_same_device("attention", q, k, v, *rest[:6], far_seed)
    *batch, time, heads, _ = q.shape
    out = _formula.empty_heads(q, *q.shape[:-1], v.shape[-1])
    return out, q.new_empty((*batch, heads, time), dtype=accumulate_dtype(q))


def _fake_backward(
    dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v, bias, _, _, sinks = arguments[:7]
    with_bias, with_sinks, _ = arguments[16:]
    check_same_device("attention", q, k, v, dout, dlse, out, lse)
    return (
        _formula.empty_heads(q, *q.shape),
        _formula.empty_heads(k, *k.shape),
        _formula.empty_heads(v, *v.shape),
        lse.new_empty(_formula.bias_shape(bias)) if with_bias else q.new_empty(0),
        lse.new_empty(sinks.shape) if with_sinks else q.new_empty(0),
    )


RAW = Kernels(
    raw_op(
        f"attention_forward({ARGUMENTS}) -> (Tensor, Tensor)",
        reference=on_memory("attention", _formula.forward, *_formula.Inputs._fields),
        fake=fake_forward,
    ),
    raw_op(
        f"attention_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, {ARGUMENTS}, "
        "bool with_bias, bool with_sinks, bool deterministic)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        reference=on_memory("attention", _formula.backward),
        fake=_fake_backward,
    ),
)
DIRECT = Kernels(*map(direct, RAW))


def triton_kernels() -> Kernels:
    from .attention_triton import attention_backward, attention_forward

    return Kernels(attention_forward, attention_backward)
