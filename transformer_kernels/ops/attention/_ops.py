# SPDX-License-Identifier: MIT
"""Declares attention, whose formula is in ``_formula.py``."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from .._declare import Formula, Kernels, Op, Way, Ways
from .._declare_arguments import Argument, Flag, Given, Integer, Number, Result, Seed
from .._dtype import accumulate_dtype
from .._heads import empty_heads
from .._register import declare
from .._work import ATTENTION as BOUND
from .._work import sizes_of
from . import _formula, _stock


def _empty_out(given: Given) -> Tensor:
    q, v = given["q"], given["v"]
    return empty_heads(q, *q.shape[:-1], v.shape[-1])


def _empty_lse(given: Given) -> Tensor:
    q: Tensor = given["q"]
    *batch, time, heads, _ = q.shape
    return q.new_empty((*batch, heads, time), dtype=accumulate_dtype(q))


def _empty_gradient(name: str, given: Given) -> Tensor:
    return empty_heads(given[name], *given[name].shape)


def _empty_bias_gradient(given: Given) -> Tensor:
    lse: Tensor = given["lse"]
    return lse.new_empty(_formula.bias_shape(given["bias"]))


def _gradients(backward: Formula, values: Given, needed: Given) -> dict[str, Tensor]:
    """Runs the backward pass, and brings the gradient of bias to its shape and dtype."""
    results = backward(*(values[name] for name in ATTENTION.backward_inputs))
    named = zip(ATTENTION.backward_outputs, results, strict=True)
    found = {name.removeprefix("d"): gradient for name, gradient in named}
    if needed["bias"]:
        bias = values["bias"]
        found["bias"] = found["bias"].to(bias.dtype).reshape(bias.shape)
    return {name: gradient for name, gradient in found.items() if needed[name]}


_BATCH: Way = {
    "q": 4, "k": 4, "v": 4, "bias": 4, "mask": 4, "alibi_slopes": 2, "out": 4, "lse": 3,
}  # fmt: skip
_HEADS: Way = {
    "q": 2, "k": 2, "v": 2, "bias": 3, "mask": 3, "alibi_slopes": 1, "sinks": 1, "out": 2, "lse": 2,
}  # fmt: skip


_QUERIES: Way = {"q": 3, "bias": 2, "mask": 2, "out": 3, "lse": 1}


def _parallel(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By batch or by heads; by queries where it does not matter how far keys are; packed sequences
    by heads alone."""
    if given["q"].dim() == 3:
        return [_HEADS]
    sees_all = given["window_left"] < 0 and given["window_right"] < 0
    is_anywhere = sees_all and given["alibi_slopes"] is None
    return [_BATCH, _HEADS, *([_QUERIES] if is_anywhere else [])]


_MOVED = ("q", "k", "v", "bias", "mask", "out")


def _moved(pass_: str, given: Given) -> int:
    """The log-sum-exp is too little to count."""
    of_gradients = ("dout", "dq", "dk", "dv", "dbias") if pass_ == "backward" else ()
    return sizes_of(given, (*_MOVED, *of_gradients))


def _flops(pass_: str, given: Given) -> float | None:
    """Two products of T x T numbers for each dimension, five in the backward pass, of queries that
    see all keys, or those before them; of others nobody knows how many."""
    q, k, v = (given[name] for name in ("q", "k", "v"))
    window = given["window_left"], given["window_right"]
    hides = any(given[name] is not None for name in ("mask", "cu_seqlens_q", "cu_seqlens_k"))
    fits = q.dim() == 4 and q.shape[1] == k.shape[1] and q.shape[3] == v.shape[3]
    if hides or not fits or window not in ((-1, -1), (-1, 0)):
        return None
    batch, time, heads, dim = q.shape
    forward = 4.0 * batch * time * time * heads * dim * (0.5 if window == (-1, 0) else 1.0)
    return forward * (2.5 if pass_ == "backward" else 1.0)


def _triton() -> Kernels:
    from .attention_triton import attention_backward, attention_forward, attention_inference

    return Kernels(attention_forward, attention_backward, attention_inference)


ATTENTION = declare(
    "attention",
    function="functional.attention",
    stock=_stock.attention,
    kind=BOUND,
    parallel=_parallel,
    moved=_moved,
    flops=_flops,
    arguments=(
        *map(Argument, ("q", "k", "v")),
        *(
            Argument(name, optional=True)
            for name in ("bias", "mask", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k")
        ),
        Seed("seed", of="q", draws="dropout"),
        Number("scale"), Integer("window_left"), Integer("window_right"), Flag("top_left"),
        Number("softcap"), Number("dropout"), Flag("deterministic"),
    ),
    results=(Result("out", "q"), Result("lse", "q"), Result("lse_rest", "q", saved=True)),
    backward=(
        "(dout, dlse?, out, lse, lse_rest, q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q,"
        " cu_seqlens_k, seed, scale, window_left, window_right, top_left, softcap, dropout,"
        " deterministic, need_dbias, need_dsinks) -> dq, dk, dv, dbias, dsinks"
    ),
    expressions={
        "deterministic": "deterministic or torch.are_deterministic_algorithms_enabled()",
    },
    more=("bias",),
    gradients=_gradients,
    formula=_formula.forward,
    statistics=_formula.statistics,
    gradient=_formula.backward,
    memory={
        "out": _empty_out,
        "lse": _empty_lse,
        "lse_rest": _empty_lse,
        **{f"d{name}": partial(_empty_gradient, name) for name in ("q", "k", "v")},
        "dbias": _empty_bias_gradient,
    },
    jagged=False,
    triton=_triton,
    fpga=True,
    replaces=(F.scaled_dot_product_attention, nn.MultiheadAttention),
    text="softmax(softcap * tanh(scale * q @ k.T / softcap) + bias - slope * distance) @ v",
)  # fmt: skip
