# SPDX-License-Identifier: MIT
"""Rotary position embedding of q and k: a shape is BxTxHxD, or BxTxHxHkxD where k has fewer heads.

`torch` is the formula of Hugging Face's models with cosines and sines of the tensors' dtype; ours
reads tables of float32. `liger` rotates in place: what is timed is that and the copy that it needs
to leave q and k as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Function,
    Part,
    bind,
    differentiate,
)
from transformer_kernels.measure.sweeps import Grid, Shape
from transformer_kernels.ops.rope._stock import rotate_half, rotate_neighbours
from transformer_kernels.testing.rope import exact

_INPUTS = ("q", "k")
_OUTPUTS = ("q_rotated", "k_rotated")
_COTANGENTS = ("dq_rotated", "dk_rotated")

# ---- shapes -------------------------------------------------------------------------------------

_HEADLINE = {
    "cuda": (
        (8, 4096, 32, 8, 128), (8, 4096, 32, 32, 128), (8, 4096, 32, 8, 64), (1, 8192, 32, 8, 128),
    ),
    "cpu": ((1, 2048, 12, 12, 64), (1, 4096, 32, 8, 128)),
}  # fmt: skip
_SMALL = ((1, 1, 32, 8, 128), (32, 1, 32, 8, 128), (1, 128, 32, 8, 128), (1, 512, 12, 12, 64))


def _headline(device: torch.device, _: torch.dtype) -> list[Shape]:
    return list(_HEADLINE[device.type])


def _small(*_: object) -> list[Shape]:
    return list(_SMALL)


def _full(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    other_dims = [(4, 2048, 16, 4, dim) for dim in (32, 80, 96, 256)]
    return _headline(device, dtype) + _small() + other_dims


GRID = Grid(
    forms="8x4096x32x128 (batch, time, heads, dim) or 8x4096x32x8x128 (32 heads of q, 8 of k)",
    fold=lambda sizes: sizes if len(sizes) in (4, 5) else None,
    sweeps={
        "quick": lambda device, dtype: _headline(device, dtype)[:1],
        "headline": _headline,
        "small": _small,
        "full": _full,
    },
)


def sizes(name: str, shape: Shape) -> Shape:
    batch, time, *heads, dim = shape
    return batch, time, heads[0 if name.startswith("q") else -1], dim


# ---- providers ----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def tables_of(
    time: int, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    return F.rope_tables(time, dim, dtype=dtype, device=device)


def own_tables(q: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    return tables_of(q.shape[1], q.shape[-1], wide, q.device)


@lru_cache(maxsize=8)
def doubled(
    time: int, dim: int, dtype: torch.dtype, device: torch.device, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """(T, 1, D): each cosine and sine once for each number of a pair."""
    cos, sin = (
        t.repeat_interleave(2, -1) if interleaved else torch.cat([t, t], -1)
        for t in tables_of(time, dim, dtype, device)
    )
    return cos.unsqueeze(1), sin.unsqueeze(1)


def of_hugging_face(interleaved: bool, sign: float) -> Callable[..., Any]:
    rotate = rotate_neighbours if interleaved else rotate_half

    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        sin = sin if sign > 0 else -sin
        return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin

    return function


def _with_tables(function: Function, interleaved: bool) -> Function:
    def run(q: Tensor, k: Tensor) -> Any:
        return function(q, k, *doubled(q.shape[1], q.shape[-1], q.dtype, q.device, interleaved))

    return run


def _compiled_backward(interleaved: bool) -> Callable[[Compiler], Build]:
    backward = of_hugging_face(interleaved, -1.0)
    return lambda compiled: bind(_with_tables(compiled(backward), interleaved), *_COTANGENTS)


def _ours(interleaved: bool, backend: str) -> Function:
    def run(q: Tensor, k: Tensor) -> Any:
        return F.rope(q, k, *own_tables(q), interleaved=interleaved, backend=backend)

    return run


def _backward(interleaved: bool, triton: bool) -> Function:
    def run(dq: Tensor, dk: Tensor) -> Any:
        from transformer_kernels.ops.rope._ops import ROPE

        assert ROPE.triton is not None
        kernel = ROPE.triton().backward if triton else ROPE.raw.backward
        return kernel(dq, dk, *own_tables(dq), None, None, None, 0, 0, 0, interleaved)

    return run


def _liger(q: Tensor, k: Tensor) -> Any:
    from liger_kernel.ops.rope import LigerRopeFunction

    cos, sin = doubled(q.shape[1], q.shape[-1], q.dtype, q.device, False)
    q, k = (x.clone().transpose(1, 2) for x in (q, k))
    rotated = LigerRopeFunction.apply(q, k, cos.squeeze(1)[None], sin.squeeze(1)[None])
    return tuple(x.transpose(1, 2) for x in rotated)


# ---- ops ----------------------------------------------------------------------------------------


def _reference(interleaved: bool, q: Tensor, k: Tensor) -> Any:
    cos, sin = (t[None] for t in tables_of(q.shape[1], q.shape[-1], torch.float64, q.device))
    return tuple(exact(x, cos, sin, interleaved) for x in (q, k))


def last_sequence(_: Arguments) -> Part:
    return lambda _, tensor: tensor[-1:]


def _op(name: str, interleaved: bool) -> Case:
    torchs = _with_tables(of_hugging_face(interleaved, 1.0), interleaved)
    liger: dict[str, Function] = {} if interleaved else {"liger": _liger}
    return Case(
        name=name,
        key="rope/rope",
        inputs=_INPUTS,
        parameters=(),
        outputs=_OUTPUTS,
        backward_reads=_COTANGENTS,
        reference=partial(_reference, interleaved),
        save=lambda _: {},
        functions={
            "torch": torchs,
            "ours": _ours(interleaved, "auto"),
            "triton": _ours(interleaved, "triton"),
            **liger,
        },
        backward={
            "torch": differentiate(torchs, _INPUTS, _COTANGENTS),
            "ours": bind(_backward(interleaved, False), *_COTANGENTS),
            "triton": bind(_backward(interleaved, True), *_COTANGENTS),
        },
        compiled_backward=_compiled_backward(interleaved),
        gradients=2,
        grid=GRID,
        sizes=sizes,
        verified=last_sequence,
        feature=interleaved,
    )


OPS = (_op("rope", False), _op("rope_interleaved", True))
