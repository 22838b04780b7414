# SPDX-License-Identifier: MIT
"""Attention, full and causal: M rows are sequences of 1024 tokens, N columns heads of 64 numbers.

Rows that 1024 does not divide are one sequence, columns that 64 does not divide one head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from transformer_kernels import functional as F
from transformer_kernels.bench.case import (
    Arguments,
    Build,
    Compiler,
    Op,
    UnsupportedError,
    differentiate,
)
from transformer_kernels.bench.timing import Call
from transformer_kernels.testing import reference

_TIME = 1024
_DIM = 64
_INPUTS = ("q", "k", "v")


def _time(rows: int) -> int:
    return _TIME if rows and rows % _TIME == 0 else rows


def _dim(columns: int) -> int:
    return _DIM if columns % _DIM == 0 else columns


def _heads(x: Tensor) -> Tensor:
    """(M, N) as (batch, time, heads, dim)."""
    rows, columns = x.shape
    return x.view(-1, _time(rows), columns // _dim(columns), _dim(columns))


def _flops(causal: bool, pass_: str, rows: int, columns: int) -> float:
    """Two products of T x T numbers for each dimension; five in the backward pass."""
    forward = 4.0 * rows * _time(rows) * columns * (0.5 if causal else 1.0)
    return {"forward": 1.0, "backward": 2.5, "both": 3.5}[pass_] * forward


def _last_sequence(rows: int) -> slice:
    return slice(rows - _time(rows), rows)


def _exact(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    window = (-1, 0 if causal else -1)
    return reference.attention(_heads(q), _heads(k), _heads(v), window=window)[0].reshape(q.shape)


def _ours(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = F.attention(_heads(q), _heads(k), _heads(v), causal=causal)
    return out.view(q.shape)


def _torch(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch takes heads before time, and gives them back so: no copy where they are read so."""
    query, key, value = (_heads(x).transpose(1, 2) for x in (q, k, v))
    out = torch_functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return out.transpose(1, 2).reshape(q.shape)


def _save(causal: bool, arguments: Arguments) -> Arguments:
    q, k, v = (_heads(arguments[name]) for name in _INPUTS)
    out, lse = F.attention(q, k, v, causal=causal, return_lse=True)
    return {"out": out.view(arguments["q"].shape), "lse": lse}


def _ours_backward(causal: bool, arguments: Arguments) -> Call:
    raw = torch.ops.transformer_kernels.attention_backward.default
    dout, out, q, k, v = (_heads(arguments[name]) for name in ("dout", "out", *_INPUTS))
    numbers = (q.shape[-1] ** -0.5, -1, 0 if causal else -1, False, 0.0, 0.0)
    inputs = (q, k, v, *[None] * 7, *numbers)
    shape = arguments["q"].shape

    def call() -> Any:
        gradients = raw(dout, None, out, arguments["lse"], *inputs, False, False, False)
        return tuple(gradient.view(shape) for gradient in gradients[:3])

    return call


def _no_compiled_backward(_: Compiler) -> Build:
    raise UnsupportedError("compile has no attention backward of its own")


def _op(name: str, causal: bool) -> Op:
    return Op(
        name=name,
        key="attention/attention",
        inputs=_INPUTS,
        parameters=(),
        outputs=("out",),
        backward_reads=("dout", "out", *_INPUTS),
        reference=partial(_exact, causal),
        save=partial(_save, causal),
        functions={"torch": partial(_torch, causal), "ours": partial(_ours, causal)},
        backward={
            "torch": differentiate(partial(_torch, causal), _INPUTS, ("dout",)),
            "ours": partial(_ours_backward, causal),
        },
        compiled_backward=_no_compiled_backward,
        gradients=len(_INPUTS),
        flops=partial(_flops, causal),
        verified_rows=_last_sequence,
    )


OPS = (_op("attention", causal=False), _op("causal_attention", causal=True))
