# SPDX-License-Identifier: MIT
"""Declares the embeddings. A ``padding_idx`` below 0 means that there is none."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._torch import embedding as torch_embedding
from .._declare import Kernels, Op, Ways
from .._declare_arguments import Flag, Given, Indices, Integer, Result, Table
from .._parallel import ONCE, SUMMED, Joint
from .._register import declare
from .._work import size_of, sizes_of
from . import _formula, _split


def _shape_of_y(tokens: str, given: Given) -> tuple[int, ...]:
    return (*given[tokens].shape, given["weight"].shape[1])


def _gradient(rows: str, given: Given) -> Tensor:
    dy: Tensor = given["dy"]
    return dy.new_empty(given[rows], dy.shape[-1])


def _stock(weight: Tensor, indices: Tensor, padding_idx: int, by_freq: bool) -> Tensor:
    return torch_embedding(weight, indices, padding_idx, by_freq)


def _stock_add(
    weight: Tensor, tokens: Tensor, position_weight: Tensor, positions: Tensor | None,
    type_weight: Tensor | None, types: Tensor | None, first_position: int, padding_idx: int,
) -> Tensor:  # fmt: skip
    if positions is None:
        last = first_position + (tokens.shape[-1] if tokens.dim() else 1)
        positions = torch.arange(first_position, last, device=tokens.device)
    y = torch_embedding(weight, tokens, padding_idx) + torch_embedding(position_weight, positions)
    if type_weight is not None and types is not None:
        y = y + torch_embedding(type_weight, types)
    return y if tokens.dim() else y.flatten()


def _parallel(
    indices: tuple[str, ...], tables: tuple[str, ...], op: Op, given: Given
) -> Ways:  # fmt: skip
    """By the columns of the tables, by tokens (positions that nobody gives count on in their last
    dimension), or by the rows of the first table, beside whose rows the others' are added once.
    Gradients divided by how often a token occurs need all tokens and rows in one place."""
    columns = dict.fromkeys((*tables, "y"), 1)
    if given.get("scale_grad_by_freq"):
        return [columns]
    first = 1 if given.get("positions", 0) is not None else 2
    by_tokens = range(first, given[indices[0]].dim() + 1)
    rows = {"weight": 2, **dict.fromkeys(tables[1:], ONCE), "y": SUMMED}
    return [
        columns,
        *({**dict.fromkeys(indices, dim), "y": dim + 1} for dim in by_tokens),
        Joint(rows, "weight", partial(_split.by_rows, op, indices[0])),
    ]


_NUMBERS = ("indices", "tokens", "positions", "types")


def _moved(pass_: str, given: Given) -> int:
    """A row is read for each token, of the first table; the others are short. Gradients are written
    whole."""
    numbers = sizes_of(given, _NUMBERS)
    if pass_ == "backward":
        return numbers + sizes_of(given, ("dy", "dweight", "dposition_weight", "dtype_weight"))
    return numbers + 2 * size_of(given["y"]) + sizes_of(given, ("position_weight", "type_weight"))


def _triton(name: str) -> Kernels:
    from . import embedding_triton

    kernels: Any = getattr(embedding_triton, name)
    return Kernels(*kernels)


def _hint_of_order(given: Given) -> str:
    weight, indices = given["weight"], given["indices"]
    tensors = isinstance(weight, Tensor) and isinstance(indices, Tensor)
    if not tensors or weight.is_floating_point() or not indices.is_floating_point():
        return ""
    return "did you mean embedding(input, weight), the indices first?"


EMBEDDING = declare(
    "embedding",
    function="functional.embedding",
    stock=_stock,
    parallel=partial(_parallel, ("indices",), ("weight",)),
    moved=_moved,
    arguments=(
        Table("weight"), Indices("indices", of="weight"), Integer("padding_idx"),
        Flag("scale_grad_by_freq"),
    ),
    results=(Result("y", "weight", partial(_shape_of_y, "indices")),),
    backward="(dy, indices, int rows, padding_idx, scale_grad_by_freq) -> dweight",
    sizes={"rows": "weight.shape[0]"},
    formula=_formula.embedding,
    gradient=_formula.table_gradient,
    memory={"dweight": partial(_gradient, "rows")},
    hint=_hint_of_order,
    jagged=False,
    triton=partial(_triton, "EMBEDDING"),
    replaces=(F.embedding, nn.Embedding),
    text="weight[indices]",
)  # fmt: skip

EMBEDDING_ADD = declare(
    "embedding_add",
    function="functional.embedding_add",
    stock=_stock_add,
    parallel=partial(
        _parallel, ("tokens", "positions", "types"), ("weight", "position_weight", "type_weight")
    ),
    moved=_moved,
    arguments=(
        Table("weight"), Indices("tokens", of="weight"), Table("position_weight", of="weight"),
        Indices("positions", optional=True, of="weight"),
        Table("type_weight", optional=True, of="weight", beside="types"),
        Indices("types", optional=True, of="weight", beside="type_weight"),
        Integer("first_position"), Integer("padding_idx"),
    ),
    results=(Result("y", "weight", partial(_shape_of_y, "tokens")),),
    backward=(
        "(dy, tokens, positions, types, int rows, int position_rows, int type_rows, first_position,"
        " padding_idx, need_dweight, need_dposition_weight, need_dtype_weight)"
        " -> dweight, dposition_weight, dtype_weight"
    ),
    sizes={
        "rows": "weight.shape[0]",
        "position_rows": "position_weight.shape[0]",
        "type_rows": "0 if type_weight is None else type_weight.shape[0]",
    },
    formula=_formula.embedding_add,
    gradient=_formula.embedding_add_gradient,
    memory={
        "dweight": partial(_gradient, "rows"),
        "dposition_weight": partial(_gradient, "position_rows"),
        "dtype_weight": partial(_gradient, "type_rows"),
    },
    jagged=False,
    triton=partial(_triton, "EMBEDDING_ADD"),
    text="weight[tokens] + position_weight[positions] + type_weight[types]",
)  # fmt: skip
