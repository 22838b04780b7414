# SPDX-License-Identifier: MIT
"""Attention's op: the output and the log-sum-exp of tensors and numbers (``_formula.py``)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from .._declare import Formula, Kernels
from .._declare_arguments import Argument, Flag, Given, Integer, Number, Result, Seed
from .._dtype import accumulate_dtype
from .._heads import empty_heads
from .._register import declare
from . import _formula
from ._arguments import check


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
    """That of bias in its own shape and dtype."""
    results = backward(*(values[name] for name in ATTENTION.backward_inputs))
    named = zip(ATTENTION.backward_outputs, results, strict=True)
    found = {name.removeprefix("d"): gradient for name, gradient in named}
    if needed["bias"]:
        bias = values["bias"]
        found["bias"] = found["bias"].to(bias.dtype).reshape(bias.shape)
    return {name: gradient for name, gradient in found.items() if needed[name]}


def _triton() -> Kernels:
    from .attention_triton import attention_backward, attention_forward, attention_inference

    return Kernels(attention_forward, attention_backward, attention_inference)


ATTENTION = declare(
    "attention",
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
    check=check,
    memory={
        "out": _empty_out,
        "lse": _empty_lse,
        "lse_rest": _empty_lse,
        **{f"d{name}": partial(_empty_gradient, name) for name in ("q", "k", "v")},
        "dbias": _empty_bias_gradient,
    },
    runs_kinds=False,
    triton=_triton,
    fpga=True,
    replaces=(F.scaled_dot_product_attention, nn.MultiheadAttention),
    text="softmax(softcap * tanh(scale * q @ k.T / softcap) + bias - slope * distance) @ v",
)  # fmt: skip
