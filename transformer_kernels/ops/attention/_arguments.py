# SPDX-License-Identifier: MIT
"""Makes C++'s checks of attention's arguments, with its messages, where no C++ runs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._errors import (
    FLOATING,
    ArgumentTypeError,
    ArgumentValueError,
    check_known,
    dtype_name,
    not_floating,
    or_float32,
    shape_text,
)
from .._declare_arguments import Given
from .._dtype import accumulate_dtype
from .._kinds import refuse_in_words
from .._sequences import check_cu_seqlens
from ._formula import Inputs, Options

_OP = "attention"
MOST_DIM = 256

refuse_in_words(
    _OP,
    causal=(
        "is a CausalBias, expected causal=True instead, with top_left=True for causal_upper_left"
    ),
    masked="is a MaskedTensor, which does not know this op, expected a plain tensor",
    jagged=(
        "is a jagged nested tensor, expected a strided one (attention() takes jagged ones as q, k"
        " and v, all three)"
    ),
    layout="has the layout {layout}, expected strided (to_dense() gives it)",
)


def _fail(message: str) -> None:
    raise ArgumentValueError(f"{_OP}: {message}")


def _check_tensors(inputs: Inputs) -> None:
    q = inputs.q
    for name, value in inputs._asdict().items():
        if value is not None:
            check_known(_OP, name, value)
            if value.device != q.device and (name != "seed" or value.is_meta):
                _fail(f"{name} is on {value.device}, expected {q.device}")
    if q.dtype not in FLOATING:
        raise not_floating(_OP, "q", q.dtype)
    for name in ("k", "v"):
        x = getattr(inputs, name)
        if x.dtype is not q.dtype:
            raise ArgumentTypeError(
                f"{_OP}: {name} is {dtype_name(x.dtype)}, expected {dtype_name(q.dtype)}"
                " (the dtype of q)"
            )


def _check_shape(name: str, x: Tensor, expected: tuple[int, ...], reason: str) -> None:
    if tuple(x.shape) != expected:
        _fail(f"{name} has shape {shape_text(x)}, expected {expected} ({reason})")


def _check_shapes(inputs: Inputs) -> None:
    q, k, v = inputs.q, inputs.k, inputs.v
    varlen = inputs.cu_seqlens_q is not None or inputs.cu_seqlens_k is not None
    rank, axes = (3, "(time, heads, dim)") if varlen else (4, "(batch, time, heads, dim)")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank:
            _fail(f"{name} has {x.dim()} dimensions, expected {rank} {axes}")
    for name, x in (("q", q), ("v", v)):
        if not 1 <= x.shape[-1] <= MOST_DIM:
            _fail(f"{name} has a head dim of {x.shape[-1]}, expected 1 to {MOST_DIM}")
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if heads % kv_heads if kv_heads else heads:
        _fail(f"q has {heads} heads, expected a multiple of {kv_heads} (the heads of k)")
    batch = tuple(q.shape[:-3])
    shared = (*batch, *k.shape[-3:-1])
    _check_shape("k", k, (*shared, q.shape[-1]), "q and the heads of k")
    _check_shape("v", v, (*shared, v.shape[-1]), "k and the dim of v")


def _check_broadcast(name: str, x: Tensor, shape: tuple[int, ...], reason: str) -> None:
    trailing = zip(reversed(x.shape), reversed(shape), strict=False)
    if x.dim() > len(shape) or any(size not in (1, wanted) for size, wanted in trailing):
        _fail(
            f"{name} has shape {shape_text(x)}, expected one that broadcasts to {shape} ({reason})"
        )


def _check_features(inputs: Inputs) -> None:
    q, k = inputs.q, inputs.k
    bias, mask = inputs.bias, inputs.mask
    varlen = q.dim() == 3
    if bias is not None and bias.dtype not in (q.dtype, accumulate_dtype(q)):
        raise ArgumentTypeError(
            f"{_OP}: bias is {dtype_name(bias.dtype)}, expected {dtype_name(q.dtype)}"
            f"{or_float32(q.dtype)}"
        )
    if mask is not None and mask.dtype is not torch.bool:
        raise ArgumentTypeError(f"{_OP}: mask is {dtype_name(mask.dtype)}, expected bool")
    for name, x in (("bias", bias), ("mask", mask)):
        if x is None:
            continue
        if varlen:
            _fail(f"{name} is given, expected none with cu_seqlens (sequences share no scores)")
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        _check_broadcast(name, x, shape, "batch, heads, queries, keys")
    for name in ("alibi_slopes", "sinks"):
        x = getattr(inputs, name)
        if x is None:
            continue
        if not x.is_floating_point():
            raise not_floating(_OP, name, x.dtype)
        if x.dtype is not accumulate_dtype(q):
            raise ArgumentTypeError(
                f"{_OP}: {name} is {dtype_name(x.dtype)}, expected"
                f" {dtype_name(accumulate_dtype(q))} (what sums are kept in)"
            )
    if inputs.alibi_slopes is not None:
        offsets = inputs.cu_seqlens_q
        batch = q.shape[0] if offsets is None else offsets.shape[0] - 1
        _check_broadcast(
            "alibi_slopes", inputs.alibi_slopes, (batch, q.shape[-2]), "batch and heads of q"
        )
    sinks, heads = inputs.sinks, q.shape[-2]
    if sinks is not None and sinks.dim() != 1:
        _fail(f"sinks has {sinks.dim()} dimensions, expected 1")
    if sinks is not None and sinks.numel() != heads:
        _fail(f"sinks has {sinks.numel()} elements, expected {heads} (the heads of q)")


def _check_sequences(inputs: Inputs) -> None:
    q_at, k_at = inputs.cu_seqlens_q, inputs.cu_seqlens_k
    if q_at is None and k_at is None:
        return
    if q_at is None or k_at is None:
        _fail("one of cu_seqlens_q and cu_seqlens_k is missing, expected both or neither")
        return
    check_cu_seqlens(_OP, "cu_seqlens_q", q_at, inputs.q.shape[0], "q")
    check_cu_seqlens(_OP, "cu_seqlens_k", k_at, inputs.k.shape[0], "k")
    if q_at.numel() != k_at.numel():
        _fail(
            f"cu_seqlens_k has {k_at.numel() - 1} sequences, expected {q_at.numel() - 1}"
            " (those of cu_seqlens_q)"
        )


def _check_options(options: Options) -> None:
    if not math.isfinite(options.scale):
        _fail(f"scale is {options.scale:g}, expected a finite number")
    if not (math.isfinite(options.softcap) and options.softcap >= 0):
        _fail(f"softcap is {options.softcap:g}, expected a finite number, 0 or above")
    if not 0 <= options.dropout <= 1:
        _fail(f"dropout is {options.dropout:g}, expected a number from 0 to 1")
    for name in ("window_left", "window_right"):
        size = getattr(options, name)
        if size < -1:
            _fail(f"{name} is {size}, expected -1 (no bound) or above")


def check(op: str, given: Given) -> None:  # noqa: ARG001
    """Raises where the op cannot take the arguments."""
    inputs = Inputs(*(given[name] for name in Inputs._fields))
    options = Options(*(given[name] for name in Options._fields))
    _check_tensors(inputs)
    _check_shapes(inputs)
    _check_sequences(inputs)
    _check_features(inputs)
    _check_options(options)


# ---- Triton's kernels ----------------------------------------------------------------------------


def refuse_in_triton(inputs: Inputs, options: Options, interpreted: bool) -> None:
    """Raises for features that only other backends have; the message names the argument."""
    refusals = (
        (inputs.cu_seqlens_q is not None, "cu_seqlens_q", "sequences of one length"),
        (inputs.alibi_slopes is not None, "alibi_slopes", "none"),
        (inputs.sinks is not None, "sinks", "none"),
        (options.softcap != 0, "softcap", "0"),
        (options.dropout != 0, "dropout", "0"),
        (options.window_left >= 0, "window_left", "-1"),
        (options.window_right > 0, "window_right", "-1, or causal"),
    )
    for applies, name, expected in refusals:
        if applies:
            _fail(f"{name} is given, expected {expected} (Triton's kernels have no such scores)")
    if inputs.q.dtype is torch.float64 and not interpreted:
        raise ArgumentTypeError(
            f"{_OP}: q is float64, expected float32, float16 or bfloat16 (Triton compiles no"
            " product of float64)"
        )


def refuse_learned_bias(bias: Tensor | None) -> None:
    """Refuses a bias with a gradient, before a differentiated call of Triton's kernels."""
    if bias is not None and bias.requires_grad:
        _fail(
            "bias requires a gradient, expected none with backend 'triton' (its kernels give those"
            " of q, k and v)"
        )
