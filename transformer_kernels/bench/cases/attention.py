# SPDX-License-Identifier: MIT
"""Attention, full, causal and with each feature of scores. A shape is BxTxHxD, or BxTxHxHkxD where
heads of q share heads of k. See ``_attention_features`` for the features.

`torch` is scaled_dot_product_attention with the kernel that it chooses; `cudnn`, `flash` and `math`
fix the kernel. `math` is standard attention, which stores the scores, and `flex` is compiled
FlexAttention, for the features. `fa3` and `fa4` are FlashAttention's own packages (flash-attn-3, or
fa3_fwd, which only has the forward pass, and flash-attn-4).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from transformer_kernels import functional as F
from transformer_kernels.bench.cases._attention_features import FEATURES, Feature
from transformer_kernels.bench.rivals.attention import (
    fa3,
    flash_attention_3,
    flash_attention_4,
)
from transformer_kernels.measure.case import (
    Arguments,
    Case,
    Function,
    Part,
    UnsupportedError,
    differentiate,
)
from transformer_kernels.measure.derive import (
    derive,
    flops,
    grid,
    no_compiled_backward,
    without,
)
from transformer_kernels.measure.sweeps import Shape, Sweep, of_heads
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops.attention._ops import ATTENTION
from transformer_kernels.ops.attention._stock import in_torch
from transformer_kernels.testing import reference

_INPUTS = ("q", "k", "v")
_OF_KEYS = ("k", "v")
_KERNELS = {
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}
_SCORES = 1 << 28  # scores that the reference holds at a time

# ---- shapes -------------------------------------------------------------------------------------

_TOKENS, _WIDTH = {"cuda": 16384, "cpu": 2048}, {"cuda": 2048, "cpu": 768}
_LENGTHS = {"cuda": (512, 1024, 2048, 4096, 8192, 16384), "cpu": (256, 512, 1024, 2048)}
_DIMS, _OTHER_DIMS = (64, 128), (32, 96, 192, 256)
_SHARED_HEADS = {"cuda": ((64, 8), (32, 8)), "cpu": ((12, 4),)}


def _of_lengths(per_device: dict[str, tuple[int, ...]], dims: tuple[int, ...]) -> Sweep:
    """Shapes with equal numbers of tokens and of channels, whatever the length and the head dim."""

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


_headline = _of_lengths(_LENGTHS, _DIMS)
_GRID = grid(
    "8x2048x32x128 (batch, time, heads, dim) or 8x2048x32x8x128 (32 heads share 8)", 4, 5,
    fits=lambda sizes: len(sizes) == 4 or (sizes[3] > 0 and sizes[2] % sizes[3] == 0),
    of_model=of_heads,
    quick=_of_lengths({"cuda": (2048, 8192), "cpu": (512, 1024)}, (64,)),
    headline=_headline,
    small=[(1, time, 12, 64) for time in (64, 128, 256, 512)],
    full=_full,
)  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    batch, time, *heads, dim = shape
    if name == "bias":
        return heads[0], time, time
    if name == "lse":
        return batch, heads[0], time
    return batch, time, heads[-1] if name in _OF_KEYS else heads[0], dim


# ---- the reference ------------------------------------------------------------------------------


def _last_heads(arguments: Arguments) -> Part:
    """The heads that share the last head of k, in the last sequence."""
    shared = arguments["q"].shape[2] // arguments["k"].shape[2]
    return lambda name, x: x[-1:, :, -1 if name in _OF_KEYS else -shared :]


def _first_heads(arguments: Arguments) -> Part:
    """The heads that share the first head of k, in the first sequence."""
    shared = arguments["q"].shape[2] // arguments["k"].shape[2]
    return lambda name, x: x[:1, :, : 1 if name in _OF_KEYS else shared]


def _last_heads_of_all(arguments: Arguments) -> Part:
    """The heads that share the last head of k, in every sequence, with their bias."""
    shared = arguments["q"].shape[2] // arguments["k"].shape[2]

    def part(name: str, x: Tensor) -> Tensor:
        return x[-shared:] if name == "bias" else x[:, :, -1 if name in _OF_KEYS else -shared :]

    return part


def _exact(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes some rows of one head at a time, and recomputes their scores in the backward pass:
    all scores would not fit in memory."""
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


def _torch_by(kernel: SDPBackend, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(kernel):
        return in_torch(q, k, v, is_causal=causal)


def _fa3_backward(causal: bool, arguments: Arguments) -> Call:
    if fa3().__name__ != "flash_attn_interface":
        raise UnsupportedError("fa3_fwd has no backward pass")
    return differentiate(partial(flash_attention_3, causal=causal), _INPUTS, ("dout",))(arguments)


def _numbers(causal: bool) -> dict[str, Any]:
    return {
        "scale": lambda given: given["q"].shape[-1] ** -0.5, "window_left": -1,
        "window_right": 0 if causal else -1, "softcap": 0.0, "dropout": 0.0,
    }  # fmt: skip


def _case(name: str, exact: Function, functions: dict[str, Function], **of: Any) -> Case:
    """A case of the providers' ``functions``, ours among them."""
    of = {"inputs": _INPUTS, "verified": _last_heads, "fixed": _numbers(False), **of}
    ours, torchs = functions.pop("ours"), functions.pop("torch", None)
    case = derive(
        ATTENTION, "attention/attention", of.pop("inputs"), name=name, outputs=("out",),
        reference=exact, ours=ours, torchs=torchs or ours, rivals=functions,
        compiled=no_compiled_backward("attention"), grid=_GRID, sizes=_sizes, **of,
    )  # fmt: skip
    return case if torchs is not None else without(case, "torch")


def _plain(name: str, causal: bool) -> Case:
    return _case(
        name,
        partial(_exact, causal),
        {
            "ours": partial(F.attention, causal=causal),
            "torch": partial(in_torch, is_causal=causal),
            **{rival: partial(_torch_by, kernel, causal) for rival, kernel in _KERNELS.items()},
            "fa3": partial(flash_attention_3, causal=causal),
            "fa4": partial(flash_attention_4, causal=causal),
        },
        fixed=_numbers(causal),
        backwards={
            "fa3": partial(_fa3_backward, causal),
            "triton": differentiate(
                partial(F.attention, causal=causal, backend="triton"), _INPUTS, ("dout",)
            ),
        },
    )


def _feature(feature: Feature) -> Case:
    """A case of a feature; only scores that it leaves count as operations."""
    share = flops(
        ATTENTION, _INPUTS, _sizes, _numbers(False), share=lambda shape: feature.share(shape[1])
    )
    return _case(
        feature.name, feature.reference, dict(feature.functions), flops=share, raw=False,
        triton=False, verified=_first_heads if feature.verifies_first_heads else _last_heads,
        feature=True,
    )  # fmt: skip


def _torch_learned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return in_torch(q, k, v, attn_mask=bias)


def _ours_learned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = F.attention(q, k, v, bias=bias)
    return out


def _exact_learned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return reference.attention(q, k, v, bias=bias)[0]


OPS = (
    _plain("attention", causal=False),
    _plain("causal_attention", causal=True),
    *(_feature(feature) for feature in FEATURES),
    # A bias per head for all sequences, with its gradient, as for relative positions.
    _case(
        "learned_bias_attention", _exact_learned, {"torch": _torch_learned, "ours": _ours_learned},
        inputs=(*_INPUTS, "bias"), raw=False, triton=False, verified=_last_heads_of_all,
        feature=True,
    ),
)  # fmt: skip
