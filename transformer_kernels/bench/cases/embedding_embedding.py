# SPDX-License-Identifier: MIT
"""embedding, and embedding_add with the positions 0 to T - 1: a shape is BxTxVxD, the table is VxD.
Indices are drawn as words of a text are (Zipf's law), and evenly (uniform_embedding).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as in_torch

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Build, Case, Function, differentiate
from transformer_kernels.measure.sweeps import Grid, Shape
from transformer_kernels.ops.embedding import _formula
from transformer_kernels.ops.embedding._ops import EMBEDDING

_aten = torch.ops.aten

# ---- shapes -------------------------------------------------------------------------------------

_GPT2, _LLAMA3 = (8, 1024, 50257, 768), (4, 2048, 128256, 4096)
_GRID = Grid(
    forms="8x1024x50257x768 (batch, time, rows of the table, dim)",
    fold=lambda sizes: sizes if len(sizes) == 4 else None,
    sweeps={
        "quick": lambda *_: [_GPT2],
        "headline": lambda device, _: [_GPT2, _LLAMA3] if device.type == "cuda" else [_GPT2],
        "small": lambda *_: [(1, 128, 30522, 768), (1, 1024, 50257, 768)],
        "full": lambda *_: [_GPT2, _LLAMA3, (8, 1024, 30522, 1024), (32, 2048, 50257, 1600)],
    },
)


def _sizes(name: str, shape: Shape) -> Shape:
    batch, time, rows, dim = shape
    return {"weight": (rows, dim), "position_weight": (time, dim)}.get(name, (batch, time, dim))


@lru_cache(maxsize=4)
def _frequencies(rows: int) -> Tensor:
    """Those of words by Zipf's law, in any order."""
    return (1.0 / torch.arange(1, rows + 1, dtype=torch.float64))[torch.randperm(rows)]


def _zipf(shape: Shape) -> Tensor:
    batch, time, rows, _ = shape
    return torch.multinomial(_frequencies(rows), batch * time, replacement=True).view(batch, time)


def _uniform(shape: Shape) -> Tensor:
    batch, time, rows, _ = shape
    return torch.randint(rows, (batch, time))


def _moved(tables: int, pass_: str, arguments: Arguments) -> int:
    """A row read for each token, of each table; gradients are written whole."""
    y, indices = arguments["dy"].nbytes, arguments["indices"].nbytes
    forward = indices + y + y
    gradients = arguments["weight"].nbytes
    if tables == 2:
        gradients += arguments["position_weight"].nbytes
        forward += arguments["position_weight"].nbytes
    backward = indices + y + gradients
    return {"forward": forward, "backward": backward, "both": forward + backward}[pass_]


# ---- embedding ----------------------------------------------------------------------------------


def _with_rows(function: Callable[..., Any], *options: Any) -> Build:
    """A gradient by dy, the indices and the number of rows."""

    def build(arguments: Arguments) -> Callable[[], Any]:
        dy, indices = arguments["dy"], arguments["indices"]
        return partial(function, dy, indices, len(arguments["weight"]), *options)

    return build


def _triton_gradient(*arguments: Any) -> Any:
    assert EMBEDDING.triton is not None
    return EMBEDDING.triton().backward(*arguments)


def _embedding(name: str, draw: Callable[[Shape], Tensor]) -> Case:
    return Case(
        name=name,
        key="embedding/embedding",
        inputs=("weight",),
        parameters=(),
        outputs=("y",),
        backward_reads=("dy",),
        reference=in_torch.embedding,
        save=lambda _: {},
        functions={
            "torch": in_torch.embedding,
            "ours": F.embedding,
            "triton": partial(F.embedding, backend="triton"),
        },
        backward={
            "torch": _with_rows(_aten.embedding_dense_backward, -1, False),
            "ours": _with_rows(EMBEDDING.raw.backward, -1, False),
            "triton": _with_rows(_triton_gradient, -1, False),
        },
        compiled_backward=lambda compiled: _with_rows(compiled(_formula.table_gradient)),
        grid=_GRID,
        sizes=_sizes,
        verified=_whole,
        indices={"indices": draw},
        moved=partial(_moved, 1),
    )


def _whole(_: Arguments) -> Callable[[str, Tensor], Tensor]:
    return lambda _, tensor: tensor


# ---- embedding_add ------------------------------------------------------------------------------

_TABLES = ("weight", "position_weight")


def _in_torch(indices: Tensor, weight: Tensor, position_weight: Tensor) -> Tensor:
    positions = torch.arange(indices.shape[-1], device=indices.device)
    return in_torch.embedding(indices, weight) + in_torch.embedding(positions, position_weight)


def _ours(backend: str) -> Function:
    return lambda indices, weight, position_weight: F.embedding_add(
        indices, weight, None, position_weight, backend=backend
    )


def _backward(function: Function) -> Build:
    def build(arguments: Arguments) -> Callable[[], Any]:
        of_tables = partial(function, arguments["indices"])
        return differentiate(of_tables, _TABLES, ("dy",))(arguments)

    return build


EMBEDDING_ADD = Case(
    name="embedding_add",
    key="embedding/embedding_add",
    inputs=_TABLES,
    parameters=(),
    outputs=("y",),
    backward_reads=("dy",),
    reference=_in_torch,
    save=lambda _: {},
    functions={"torch": _in_torch, "ours": _ours("auto"), "triton": _ours("triton")},
    backward={
        "torch": _backward(_in_torch),
        "ours": _backward(_ours("auto")),
        "triton": _backward(_ours("triton")),
    },
    compiled_backward=lambda compiled: _backward(compiled(_in_torch)),
    gradients=2,
    grid=_GRID,
    sizes=_sizes,
    verified=_whole,
    indices={"indices": _zipf},
    moved=partial(_moved, 2),
)

OPS = (_embedding("embedding", _zipf), _embedding("uniform_embedding", _uniform), EMBEDDING_ADD)
