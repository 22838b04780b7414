# SPDX-License-Identifier: MIT
"""The norm of each head of q and k, and the rotation behind it, by weights that all share.
Shapes are those of ``rope``. `torch` is what models write: rms_norm, then Hugging Face's formula.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from transformer_kernels import functional as F
from transformer_kernels.bench.cases.rope_rope import (
    GRID,
    doubled,
    last_sequence,
    of_hugging_face,
    own_tables,
    sizes,
    tables_of,
)
from transformer_kernels.measure.case import Build, Case, Compiler, bind, differentiate
from transformer_kernels.testing import reference
from transformer_kernels.testing.rope import exact

_EPS = 1e-6
_INPUTS = ("q", "k")
_COTANGENTS = ("dq_normed", "dk_normed")
_READ = (*_COTANGENTS, *_INPUTS)


@lru_cache(maxsize=8)
def _weights(dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same numbers in every dtype that holds them."""
    steps = torch.arange(dim, device=device)
    q_weight, k_weight = ((steps * step % 17) / 16 + 0.5 for step in (5, 7))
    return q_weight.to(dtype), k_weight.to(dtype)


def _torchs(q: Tensor, k: Tensor) -> Any:
    weights = _weights(q.shape[-1], q.dtype, q.device)
    normed = (
        torch_functional.rms_norm(x, w.shape, w, _EPS) for x, w in zip((q, k), weights, strict=True)
    )
    tables = doubled(q.shape[1], q.shape[-1], q.dtype, q.device, False)
    return of_hugging_face(False, 1.0)(*normed, *tables)


def _ours(backend: str) -> Any:
    def run(q: Tensor, k: Tensor) -> Any:
        cos, sin = own_tables(q)
        weights = _weights(q.shape[-1], q.dtype, q.device)
        return F.qk_norm(q, k, *weights, _EPS, cos=cos, sin=sin, backend=backend)

    return run


def _backward(triton: bool) -> Any:
    def run(dq: Tensor, dk: Tensor, q: Tensor, k: Tensor) -> Any:
        from transformer_kernels.ops.rope._ops import QK_NORM

        assert QK_NORM.triton is not None
        kernel = QK_NORM.triton().backward if triton else QK_NORM.raw.backward
        weights = _weights(q.shape[-1], q.dtype, q.device)
        positions = (None, None, None, 0, 0, 0, False)
        return kernel(dq, dk, q, k, *weights, *own_tables(q), *positions, _EPS, True, True)

    return run


def _reference(q: Tensor, k: Tensor) -> Any:
    cos, sin = (t[None] for t in tables_of(q.shape[1], q.shape[-1], torch.float64, q.device))
    weights = _weights(q.shape[-1], torch.float64, q.device)
    return tuple(
        exact(reference.rms_norm(x, w, None, _EPS), cos, sin)
        for x, w in zip((q, k), weights, strict=True)
    )


def _compiled_backward(compiled: Compiler) -> Build:
    def backward(dq: Tensor, dk: Tensor, q: Tensor, k: Tensor) -> Any:
        return torch.func.vjp(_torchs, q, k)[1]((dq, dk))

    return bind(compiled(backward), *_READ)


OPS = (
    Case(
        name="qk_norm",
        key="rope/qk_norm",
        inputs=_INPUTS,
        parameters=(),
        outputs=("q_normed", "k_normed"),
        backward_reads=_READ,
        reference=_reference,
        save=lambda _: {},
        functions={"torch": _torchs, "ours": _ours("auto"), "triton": _ours("triton")},
        backward={
            "torch": differentiate(_torchs, _INPUTS, _COTANGENTS),
            "ours": bind(_backward(False), *_READ),
            "triton": bind(_backward(True), *_READ),
        },
        compiled_backward=_compiled_backward,
        gradients=2,
        grid=GRID,
        sizes=sizes,
        verified=last_sequence,
    ),
)
