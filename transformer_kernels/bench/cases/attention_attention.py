# SPDX-License-Identifier: MIT
"""Attention, full, causal and with each feature of scores: a shape is BxTxHxD, or BxTxHxHkxD where
heads of q share those of k.

`torch` is scaled_dot_product_attention with what it chooses, `cudnn`, `flash` and `math` the same
held to one of its kernels; `math` is standard attention, which materialises the scores. `fa3` and
`fa4` are FlashAttention's own packages (flash-attn-3, or fa3_fwd, which has the forward pass alone,
and flash-attn-4).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from transformer_kernels import functional as F
from transformer_kernels.bench.case import (
    Arguments,
    Build,
    Compiler,
    Function,
    Op,
    Part,
    UnsupportedError,
    differentiate,
)
from transformer_kernels.bench.sweeps import Grid, Shape, Sweep
from transformer_kernels.bench.timing import Call
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


def _torch(causal: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch takes heads before time, and gives them back so."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    shared = q.shape[2] != k.shape[2]
    return torch_functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=shared
    ).transpose(1, 2)


def _torch_by(kernel: SDPBackend, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(kernel):
        return _torch(causal, q, k, v)


def _fa3() -> ModuleType:
    try:
        return importlib.import_module("flash_attn_interface")
    except ImportError:
        return importlib.import_module("fa3_fwd_interface")


def _flash_attention_3(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Any:
    out = _fa3().flash_attn_func(q, k, v, causal=causal)
    return out[0] if isinstance(out, tuple) else out  # with its log-sum-exp, in some versions


def _flash_attention_4(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Any:
    from flash_attn.cute import flash_attn_func

    out, _ = flash_attn_func(q, k, v, causal=causal)
    return out


def _save(causal: bool, arguments: Arguments) -> Arguments:
    out, lse = F.attention(*(arguments[n] for n in _INPUTS), causal=causal, return_lse=True)
    return {"out": out, "lse": lse}


def _ours_backward(causal: bool, arguments: Arguments) -> Call:
    raw = torch.ops.transformer_kernels.attention_backward.default
    dout, out, lse, q, k, v = (arguments[name] for name in ("dout", "out", "lse", *_INPUTS))
    numbers = (q.shape[-1] ** -0.5, -1, 0 if causal else -1, False, 0.0, 0.0)
    inputs = (q, k, v, *[None] * 7, *numbers)

    def call() -> Any:
        return raw(dout, None, out, lse, *inputs, False, False, False)[:3]

    return call


def _no_compiled_backward(_: Compiler) -> Build:
    raise UnsupportedError("compile has no attention backward of its own")


def _fa3_backward(causal: bool, arguments: Arguments) -> Call:
    if _fa3().__name__ != "flash_attn_interface":
        raise UnsupportedError("fa3_fwd has no backward pass")
    return differentiate(partial(_flash_attention_3, causal), _INPUTS, ("dout",))(arguments)


def _op(
    name: str,
    reference: Function,
    save: Callable[[Arguments], Arguments],
    functions: Mapping[str, Function],
    backward: Mapping[str, Build],
    flops: Callable[[str, Shape], float],
    feature: bool = False,
) -> Op:
    return Op(
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


def _differentiated(functions: Mapping[str, Function]) -> dict[str, Build]:
    return {who: differentiate(run, _INPUTS, ("dout",)) for who, run in functions.items()}


def _plain(name: str, causal: bool) -> Op:
    rivals = {
        "torch": partial(_torch, causal),
        **{rival: partial(_torch_by, kernel, causal) for rival, kernel in _KERNELS.items()},
        "fa4": partial(_flash_attention_4, causal),
        "triton": partial(_ours, causal, backend="triton"),
    }
    fa3 = {"fa3": partial(_flash_attention_3, causal)}
    backward = {"fa3": partial(_fa3_backward, causal), "ours": partial(_ours_backward, causal)}
    return _op(
        name,
        partial(_exact, causal),
        partial(_save, causal),
        {**rivals, **fa3, "ours": partial(_ours, causal)},
        {**_differentiated(rivals), **backward},
        partial(_flops, causal),
    )


# ---- features -----------------------------------------------------------------------------------
# What a feature needs beside q, k and v is made once: nothing of it is timed.

_SEEN_KEYS = 1024  # of a sliding window
_CAP = 30.0
_HIDDEN_BELOW = -0.84  # a fifth of normal numbers

Options = Callable[[Tensor], dict[str, Any]]  # of q, as our call and the reference name them


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
def _sinks(heads: int, device: torch.device) -> Tensor:
    return torch.zeros(heads, device=device)


_FEATURES: dict[str, Options] = {
    "windowed_attention": lambda _: {"window": (_SEEN_KEYS - 1, 0)},
    "sink_attention": lambda q: {"sinks": _sinks(q.shape[2], q.device)},
    "alibi_attention": lambda q: {"alibi_slopes": _slopes(q.shape[2], q.device)},
    "softcap_attention": lambda _: {"softcap": _CAP},
    "masked_attention": lambda q: {"mask": _visible(q.shape[1], q.device)},
    "biased_attention": lambda q: {"bias": _noise(q.shape[1], q.dtype, q.device)},
}
_IN_TORCH = {"masked_attention": "mask", "biased_attention": "bias"}  # as its attn_mask


def _ours_with(options: Options, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = F.attention(q, k, v, **options(q))
    return out


def _torch_with(options: Options, option: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _torch(False, q, k, v, options(q)[option])


def _exact_with(options: Options, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference.attention(q, k, v, **options(q))[0]


def _flops_with(name: str, pass_: str, shape: Shape) -> float:
    """Of the scores that are left."""
    if name != "windowed_attention":
        return _flops(False, pass_, shape)
    time = shape[1]
    seen = min(_SEEN_KEYS, time)
    return _flops(False, pass_, shape) * (seen * time - seen * (seen - 1) / 2) / time**2


def _feature(name: str, options: Options) -> Op:
    functions: dict[str, Function] = {"ours": partial(_ours_with, options)}
    if name in _IN_TORCH:
        functions["torch"] = partial(_torch_with, options, _IN_TORCH[name])

    def save(arguments: Arguments) -> Arguments:
        return {"out": _ours_with(options, *(arguments[n] for n in _INPUTS))}

    return _op(
        name,
        partial(_exact_with, options),
        save,
        functions,
        _differentiated(functions),
        partial(_flops_with, name),
        feature=True,
    )


OPS = (
    _plain("attention", causal=False),
    _plain("causal_attention", causal=True),
    *(_feature(name, options) for name, options in _FEATURES.items()),
)
