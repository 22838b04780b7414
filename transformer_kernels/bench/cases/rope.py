# SPDX-License-Identifier: MIT
"""Rotary position embedding of q and k, alone and after a norm of each head with weights that all
heads share. A shape is BxTxHxD, or BxTxHxHkxD where k has fewer heads.

`torch` is the code of Hugging Face's models, with cosines and sines in the tensors' dtype, which
are computed beforehand, and for ``qk_norm`` after rms_norm; ours reads float32 tables. `liger`
rotates in place: its time includes the copy that leaves q and k unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Function,
    Part,
    bind,
)
from transformer_kernels.measure.derive import derive, grid, triton_backward
from transformer_kernels.measure.sweeps import Shape, of_heads
from transformer_kernels.ops.rope import _stock
from transformer_kernels.ops.rope._ops import QK_NORM, ROPE
from transformer_kernels.testing import reference
from transformer_kernels.testing.rope import exact

_INPUTS = ("q", "k")
_ROTATED, _NORMED = ("dq_rotated", "dk_rotated"), ("dq_normed", "dk_normed")
_EPS = 1e-6

_HEADLINE = {
    "cuda": [
        (8, 4096, 32, 8, 128), (8, 4096, 32, 32, 128), (8, 4096, 32, 8, 64), (1, 8192, 32, 8, 128),
    ],
    "cpu": [(1, 2048, 12, 12, 64), (1, 4096, 32, 8, 128)],
}  # fmt: skip
_SMALL = [(1, 1, 32, 8, 128), (32, 1, 32, 8, 128), (1, 128, 32, 8, 128), (1, 512, 12, 12, 64)]
_OTHER_DIMS = [(4, 2048, 16, 4, dim) for dim in (32, 80, 96, 256)]
_GRID = grid(
    "8x4096x32x128 (batch, time, heads, dim) or 8x4096x32x8x128 (32 heads of q, 8 of k)", 4, 5,
    of_model=of_heads,
    quick={kind: shapes[:1] for kind, shapes in _HEADLINE.items()},
    headline=_HEADLINE,
    small=_SMALL,
    full={kind: shapes + _SMALL + _OTHER_DIMS for kind, shapes in _HEADLINE.items()},
)  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    batch, time, *heads, dim = shape
    return batch, time, heads[0 if name.startswith("q") else -1], dim


def _last_sequence(_: Arguments) -> Part:
    return lambda _, tensor: tensor[-1:]


# ---- what is made once --------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _tables(time: int, dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return F.rope_tables(time, dim, dtype=dtype, device=device)


def _own_tables(q: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    return _tables(q.shape[1], q.shape[-1], wide, q.device)


@lru_cache(maxsize=8)
def _doubled(
    time: int, dim: int, dtype: torch.dtype, device: torch.device, interleaved: bool
) -> list[Tensor]:
    return [_stock.doubled(t, interleaved) for t in _tables(time, dim, dtype, device)]


@lru_cache(maxsize=8)
def _weights(dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Weights with the same values in every dtype that holds them."""
    steps = torch.arange(dim, device=device)
    q_weight, k_weight = ((steps * step % 17) / 16 + 0.5 for step in (5, 7))
    return q_weight.to(dtype), k_weight.to(dtype)


def _weights_of(q: Tensor) -> tuple[Tensor, Tensor]:
    return _weights(q.shape[-1], q.dtype, q.device)


# ---- rope ---------------------------------------------------------------------------------------


def _of_hugging_face(interleaved: bool, sign: float) -> Callable[..., Any]:
    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        sin = sin if sign > 0 else -sin
        q, k = (_stock.rotated(x, cos, sin, interleaved) for x in (q, k))
        return q, k

    return function


def _with_tables(function: Function, interleaved: bool) -> Function:
    def run(q: Tensor, k: Tensor) -> Any:
        return function(q, k, *_doubled(q.shape[1], q.shape[-1], q.dtype, q.device, interleaved))

    return run


def _backward(interleaved: bool, kernel: Function) -> Function:
    def run(dq: Tensor, dk: Tensor) -> Any:
        return kernel(dq, dk, *_own_tables(dq), None, None, None, 0, 0, 0, interleaved)

    return run


def _liger(q: Tensor, k: Tensor) -> Any:
    from liger_kernel.ops.rope import LigerRopeFunction

    cos, sin = _doubled(q.shape[1], q.shape[-1], q.dtype, q.device, False)
    q, k = (x.clone().transpose(1, 2) for x in (q, k))
    rotated = LigerRopeFunction.apply(q, k, cos.squeeze(1)[None], sin.squeeze(1)[None])
    return tuple(x.transpose(1, 2) for x in rotated)


def _reference(interleaved: bool, q: Tensor, k: Tensor) -> Any:
    cos, sin = (t[None] for t in _tables(q.shape[1], q.shape[-1], torch.float64, q.device))
    return tuple(exact(x, cos, sin, interleaved) for x in (q, k))


def _rope(name: str, interleaved: bool) -> Case:
    def compiled(compiler: Compiler) -> Build:
        opposite = compiler(_of_hugging_face(interleaved, -1.0))
        return bind(_with_tables(opposite, interleaved), *_ROTATED)

    def ours(q: Tensor, k: Tensor, **backend: Any) -> Any:
        return F.rope(q, k, *_own_tables(q), interleaved=interleaved, **backend)

    kernels = {"ours": ROPE.raw.backward, "triton": triton_backward(ROPE)}
    return derive(
        ROPE, "rope/rope", _INPUTS, name=name, reference=partial(_reference, interleaved),
        ours=ours, torchs=_with_tables(_of_hugging_face(interleaved, 1.0), interleaved), raw=False,
        rivals={} if interleaved else {"liger": _liger},
        backwards={"liger": None}
        | {who: bind(_backward(interleaved, kernel), *_ROTATED) for who, kernel in kernels.items()},
        compiled=compiled, grid=_GRID, sizes=_sizes, verified=_last_sequence, feature=interleaved,
    )  # fmt: skip


# ---- qk_norm ------------------------------------------------------------------------------------


def _torch_norm(q: Tensor, k: Tensor) -> Any:
    normed = (
        functional.rms_norm(x, w.shape, w, _EPS)
        for x, w in zip((q, k), _weights_of(q), strict=True)
    )
    tables = _doubled(q.shape[1], q.shape[-1], q.dtype, q.device, False)
    return _of_hugging_face(False, 1.0)(*normed, *tables)


def _our_norm(q: Tensor, k: Tensor, **backend: Any) -> Any:
    cos, sin = _own_tables(q)
    return F.qk_norm(q, k, *_weights_of(q), _EPS, cos=cos, sin=sin, **backend)


def _norm_backward(kernel: Function) -> Function:
    def run(dq: Tensor, dk: Tensor, q: Tensor, k: Tensor) -> Any:
        positions = (None, None, None, 0, 0, 0, False)
        tables = _own_tables(q)
        return kernel(dq, dk, q, k, *_weights_of(q), *tables, *positions, _EPS, True, True)

    return run


def _norm_reference(q: Tensor, k: Tensor) -> Any:
    cos, sin = (t[None] for t in _tables(q.shape[1], q.shape[-1], torch.float64, q.device))
    weights = _weights(q.shape[-1], torch.float64, q.device)
    return tuple(
        exact(reference.rms_norm(x, w, None, _EPS), cos, sin)
        for x, w in zip((q, k), weights, strict=True)
    )


OPS = (
    derive(
        QK_NORM, "rope/qk_norm", _INPUTS, reference=_norm_reference, ours=_our_norm,
        torchs=_torch_norm, raw=False,
        backwards={
            "ours": bind(_norm_backward(QK_NORM.raw.backward), *_NORMED, *_INPUTS),
            "triton": bind(_norm_backward(triton_backward(QK_NORM)), *_NORMED, *_INPUTS),
        },
        compiled="vjp", grid=_GRID, sizes=_sizes, verified=_last_sequence,
    ),
    _rope("rope", False),
    _rope("rope_interleaved", True),
)  # fmt: skip
