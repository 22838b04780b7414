# SPDX-License-Identifier: MIT
"""embedding, and embedding_add with the positions 0 to T - 1. A shape is BxTxVxD, and the table is
VxD. Indices are drawn like words of a text (Zipf's law), or uniformly (uniform_embedding).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Case
from transformer_kernels.measure.derive import derive, grid, whole
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.ops.embedding._ops import EMBEDDING, EMBEDDING_ADD

_TABLES = ("weight", "position_weight")
_GPT2, _LLAMA3 = (8, 1024, 50257, 768), (4, 2048, 128256, 4096)
_GRID = grid(
    "8x1024x50257x768 (batch, time, rows of the table, dim)", 4,
    of_model=lambda batch, length, width: (batch, length, _GPT2[2], width),
    quick=[_GPT2],
    headline={"cuda": [_GPT2, _LLAMA3], "cpu": [_GPT2]},
    small=[(1, 128, 30522, 768), (1, 1024, 50257, 768)],
    full=[_GPT2, _LLAMA3, (8, 1024, 30522, 1024), (32, 2048, 50257, 1600)],
)  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    batch, time, rows, dim = shape
    return {"weight": (rows, dim), "position_weight": (time, dim)}.get(name, (batch, time, dim))


@lru_cache(maxsize=4)
def _frequencies(rows: int) -> Tensor:
    """Frequencies of words by Zipf's law, in random order."""
    return (1.0 / torch.arange(1, rows + 1, dtype=torch.float64))[torch.randperm(rows)]


def _zipf(shape: Shape) -> Tensor:
    batch, time, rows, _ = shape
    return torch.multinomial(_frequencies(rows), batch * time, replacement=True).view(batch, time)


def _uniform(shape: Shape) -> Tensor:
    batch, time, rows, _ = shape
    return torch.randint(rows, (batch, time))


def _torch_backward(arguments: Arguments) -> Callable[[], Any]:
    """Calls PyTorch's raw op."""
    dy, indices, rows = arguments["dy"], arguments["indices"], len(arguments["weight"])
    run = torch.ops.aten.embedding_dense_backward
    return lambda: run(dy, indices, rows, -1, False)


def _embedding(name: str, draw: Callable[[Shape], Tensor]) -> Case:
    return derive(
        EMBEDDING, "embedding/embedding", ("weight",), name=name, fixed={"padding_idx": -1},
        indices={"indices": draw}, reference=functional.embedding, ours=F.embedding,
        backwards={"torch": _torch_backward}, compiled="gradient", grid=_GRID, sizes=_sizes,
        verified=whole,
    )  # fmt: skip


def _sum(tokens: Tensor, weight: Tensor, position_weight: Tensor) -> Tensor:
    positions = torch.arange(tokens.shape[-1], device=tokens.device)
    return functional.embedding(tokens, weight) + functional.embedding(positions, position_weight)


def _ours(tokens: Tensor, weight: Tensor, position_weight: Tensor, **backend: Any) -> Tensor:
    return F.embedding_add(tokens, weight, None, position_weight, **backend)


OPS = (
    _embedding("embedding", _zipf),
    _embedding("uniform_embedding", _uniform),
    derive(
        EMBEDDING_ADD, "embedding/embedding_add", _TABLES,
        fixed={"first_position": 0, "padding_idx": -1}, indices={"tokens": _zipf},
        reference=_sum, ours=_ours, raw=False, grid=_GRID, sizes=_sizes, verified=whole,
    ),
)  # fmt: skip
