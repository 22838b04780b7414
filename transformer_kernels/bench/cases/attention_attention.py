# SPDX-License-Identifier: MIT
"""Attention, full, causal and with each feature of scores: a shape is BxTxHxD, or BxTxHxHkxD where
heads of q share those of k. See ``_attention_features`` for the features.

`torch` is scaled_dot_product_attention with what it chooses, `cudnn`, `flash` and `math` the same
held to one of its kernels; `math` is standard attention, which materialises the scores, and `flex`
FlexAttention, compiled, for the features. `fa3` and `fa4` are FlashAttention's own packages
(flash-attn-3, or fa3_fwd, which has the forward pass alone, and flash-attn-4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from transformer_kernels import functional as F
from transformer_kernels.bench.cases._attention_features import FEATURES, Feature
from transformer_kernels.bench.cases._attention_rivals import (
    fa3,
    flash_attention_3,
    flash_attention_4,
    in_torch,
)
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Function,
    Part,
    UnsupportedError,
    differentiate,
)
from transformer_kernels.measure.sweeps import Grid, Shape, Sweep
from transformer_kernels.measure.timing import Call
from transformer_kernels.testing import reference

_INPUTS = ("q", "k", "v")
_OF_KEYS = ("k", "v")
_KERNELS = {
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}
_SCORES = 1 << 28  # of the reference at a time

# ---- shapes -------------------------------------------------------------------------------------

_TOKENS, _WIDTH = {"cuda": 16384, "cpu": 2048}, {"cuda": 2048, "cpu": 768}
_LENGTHS = {"cuda": (512, 1024, 2048, 4096, 8192, 16384), "cpu": (256, 512, 1024, 2048)}
_DIMS, _OTHER_DIMS = (64, 128), (32, 96, 192, 256)
_SHARED_HEADS = {"cuda": ((64, 8), (32, 8)), "cpu": ((12, 4),)}


def _of_lengths(per_device: dict[str, tuple[int, ...]], dims: tuple[int, ...]) -> Sweep:
    """As many tokens and as many numbers in each, whatever the length and the head dim."""

    def shapes(device: torch.device, _: torch.dtype) -> list[Shape]:
        tokens, width = _TOKENS[device.type], _WIDTH[device.type]
        lengths = per_device[device.type]
        return [(tokens // time, time, width // dim, dim) for dim in dims for time in lengths]

    return shapes


def _shared(device: torch.device, _: torch.dtype) -> list[Shape]:
    tokens, dim = _TOKENS[device.type], _DIMS[-1]
    lengths = _LENGTHS[device.type][-3::2]
    heads = _SHARED_HEADS[device.type]
    return [(tokens // time, time, *pair, dim) for pair in heads for time in lengths]


def _full(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    other_dims = _of_lengths(_LENGTHS, _OTHER_DIMS)(device, dtype)
    return _headline(device, dtype) + other_dims + _shared(device, dtype)


def _fold(sizes: Shape) -> Shape | None:
    fits = len(sizes) == 4 or (len(sizes) == 5 and sizes[3] > 0 and sizes[2] % sizes[3] == 0)
    return sizes if fits else None


_headline = _of_lengths(_LENGTHS, _DIMS)
_GRID = Grid(
    forms="8x2048x32x128 (batch, time, heads, dim) or 8x2048x32x8x128 (32 heads share 8)",
    fold=_fold,
    sweeps={
        "quick": _of_lengths({"cuda": (2048, 8192), "cpu": (512, 1024)}, (64,)),
        "headline": _headline,
        "small": lambda *_: [(1, time, 12, 64) for time in (64, 128, 256, 512)],
        "full": _full,
    },
)


def _sizes(name: str, shape: Shape) -> Shape:
    batch, time, *heads, dim = shape
    if name == "bias":
        return heads[0], time, time
    return batch, time, heads[-1] if name in _OF_KEYS else heads[0], dim


def _flops(causal: bool, pass_: str, shape: Shape) -> float:
    """Two products of T x T numbers for each dimension; five in the backward pass."""
    batch, time, heads, dim = _sizes("q", shape)
    forward = 4.0 * batch * time * time * heads * dim * (0.5 if causal else 1.0)
    return {"forward": 1.0, "backward": 2.5, "both": 3.5}[pass_] * forward


# ---- the reference ------------------------------------------------------------------------------


def _last_heads(arguments: Arguments) -> Part:
    """Those that share the last head of k, in the last sequence."""
    shared = arguments["q"].shape[2] // arguments["k"].shape[2]
    return lambda name, x: x[-1:, :, -1 if name in _OF_KEYS else -shared :]


def _first_heads(arguments: Arguments) -> Part:
    """Those that share the first head of k, in the first sequence."""
    shared = arguments["q"].shape[2] // arguments["k"].shape[2]
    return lambda name, x: x[:1, :, : 1 if name in _OF_KEYS else shared]


def _last_heads_of_all(arguments: Arguments) -> Part:
    """The same of every sequence, with their bias."""
    shared = arguments["q"].shape[2] // arguments["k"].shape[2]

    def part(name: str, x: Tensor) -> Tensor:
        return x[-shared:] if name == "bias" else x[:, :, -1 if name in _OF_KEYS else -shared :]

    return part


def _exact(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Some rows of one head at a time, their scores made again in the backward pass: those of all
    would not fit."""
    window = (-1, 0 if causal else -1)
    time, group = q.shape[1], q.shape[2] // k.shape[2]
    block = max(1, _SCORES // time)

    def of_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.attention(q, k, v, window=window)[0]

    def of_head(head: int) -> Tensor:
        k1, v1 = (x[:, :, [head // group]] for x in (k, v))
        outs = []
        for begin in range(0, time, block):
            end = min(begin + block, time)
            seen = end if causal else time  # the diagonal meets the last row and the last key
            rows = q[:, begin:end, [head]], k1[:, :seen], v1[:, :seen]
            outs.append(checkpoint(of_rows, *rows, use_reentrant=False))
        return torch.cat(outs, 1)

    return torch.cat([of_head(head) for head in range(q.shape[2])], 2)


# ---- who runs it --------------------------------------------------------------------------------


def _ours(causal: bool, q: Tensor, k: Tensor, v: Tensor, backend: str = "auto") -> Tensor:
    out: Tensor = F.attention(q, k, v, causal=causal, backend=backend)
    return out


def _torch_by(kernel: SDPBackend, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(kernel):
        return in_torch(q, k, v, is_causal=causal)


def _save(causal: bool, arguments: Arguments) -> Arguments:
    out, lse = F.attention(*(arguments[n] for n in _INPUTS), causal=causal, return_lse=True)
    return {"out": out, "lse": lse}


def _ours_backward(causal: bool, arguments: Arguments) -> Call:
    raw = torch.ops.transformer_kernels.attention_backward.default
    dout, out, lse, q, k, v = (arguments[name] for name in ("dout", "out", "lse", *_INPUTS))
    numbers = (q.shape[-1] ** -0.5, -1, 0 if causal else -1, False, 0.0, 0.0)
    inputs = (q, k, v, *[None] * 7, *numbers)
    rest = torch.zeros_like(lse)  # of scores that are not large

    def call() -> Any:
        return raw(dout, None, out, lse, rest, *inputs, False, False, False)[:3]

    return call


def _no_compiled_backward(_: Compiler) -> Build:
    raise UnsupportedError("compile has no attention backward of its own")


def _fa3_backward(causal: bool, arguments: Arguments) -> Call:
    if fa3().__name__ != "flash_attn_interface":
        raise UnsupportedError("fa3_fwd has no backward pass")
    return differentiate(partial(flash_attention_3, causal=causal), _INPUTS, ("dout",))(arguments)


def _op(
    name: str,
    reference: Function,
    save: Callable[[Arguments], Arguments],
    functions: Mapping[str, Function],
    backward: Mapping[str, Build],
    flops: Callable[[str, Shape], float],
    feature: bool = False,
) -> Case:
    return Case(
        name=name,
        key="attention/attention",
        inputs=_INPUTS,
        parameters=(),
        outputs=("out",),
        backward_reads=("dout", "out", *_INPUTS),
        reference=reference,
        save=save,
        functions=functions,
        backward=backward,
        compiled_backward=_no_compiled_backward,
        gradients=len(_INPUTS),
        grid=_GRID,
        sizes=_sizes,
        flops=flops,
        verified=_last_heads,
        feature=feature,
    )


def _differentiated(
    functions: Mapping[str, Function], inputs: tuple[str, ...] = _INPUTS
) -> dict[str, Build]:
    return {who: differentiate(run, inputs, ("dout",)) for who, run in functions.items()}


def _plain(name: str, causal: bool) -> Case:
    rivals = {
        "torch": partial(in_torch, is_causal=causal),
        **{rival: partial(_torch_by, kernel, causal) for rival, kernel in _KERNELS.items()},
        "fa4": partial(flash_attention_4, causal=causal),
        "triton": partial(_ours, causal, backend="triton"),
    }
    backward = {"fa3": partial(_fa3_backward, causal), "ours": partial(_ours_backward, causal)}
    return _op(
        name,
        partial(_exact, causal),
        partial(_save, causal),
        {
            **rivals,
            "fa3": partial(flash_attention_3, causal=causal),
            "ours": partial(_ours, causal),
        },
        {**_differentiated(rivals), **backward},
        partial(_flops, causal),
    )


def _feature(feature: Feature) -> Case:
    def save(arguments: Arguments) -> Arguments:
        return {"out": feature.functions["ours"](*(arguments[n] for n in _INPUTS))}

    return replace(
        _op(
            feature.name,
            feature.reference,
            save,
            feature.functions,
            _differentiated(feature.functions),
            partial(_flops_of_feature, feature),
            feature=True,
        ),
        verified=_first_heads if feature.verifies_first_heads else _last_heads,
    )


def _flops_of_feature(feature: Feature, pass_: str, shape: Shape) -> float:
    """Of the scores that are left."""
    return feature.share(shape[1]) * _flops(False, pass_, shape)


# ---- a bias that is learned ---------------------------------------------------------------------


def _torch_learned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return in_torch(q, k, v, attn_mask=bias)


def _ours_learned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = F.attention(q, k, v, bias=bias)
    return out


def _exact_learned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return reference.attention(q, k, v, bias=bias)[0]


def _learned() -> Case:
    """One bias a head for all sequences, with its gradient: relative positions."""
    inputs = (*_INPUTS, "bias")
    functions: dict[str, Function] = {"torch": _torch_learned, "ours": _ours_learned}

    def save(arguments: Arguments) -> Arguments:
        return {"out": functions["ours"](*(arguments[n] for n in inputs))}

    return replace(
        _op(
            "learned_bias_attention",
            _exact_learned,
            save,
            functions,
            _differentiated(functions, inputs),
            partial(_flops, False),
            feature=True,
        ),
        inputs=inputs,
        backward_reads=("dout", "out", *inputs),
        gradients=len(inputs),
        verified=_last_heads_of_all,
    )


OPS = (
    _plain("attention", causal=False),
    _plain("causal_attention", causal=True),
    *(_feature(feature) for feature in FEATURES),
    _learned(),
)
