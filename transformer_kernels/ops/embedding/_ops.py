# SPDX-License-Identifier: MIT
"""Declares the embeddings. A ``padding_idx`` below 0 means that there is none."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.nn import functional as F

from ..._errors import ArgumentValueError, shape_text
from ..._torch import embedding as torch_embedding
from .._declare import Kernels, Op, Ways
from .._declare_arguments import Flag, Given, Indices, Integer, Result, Table
from .._register import declare
from .._work import size_of, sizes_of
from . import _formula


def _shape_of_y(tokens: str, given: Given) -> tuple[int, ...]:
    return (*given[tokens].shape, given["weight"].shape[1])


def _gradient(rows: str, given: Given) -> Tensor:
    dy: Tensor = given["dy"]
    return dy.new_empty(given[rows], dy.shape[-1])


def _repeats_in(shape: Size, tokens: Size) -> bool:
    """Whether ``shape`` equals the shape of ``tokens``, or their last dimensions."""
    if len(shape) > len(tokens):
        return False
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    kept = shape[first:]
    return kept == tokens[len(tokens) - len(kept) :]


def _check_beside_tokens(op: str, name: str, indices: Tensor, tokens: Tensor) -> None:
    if not _repeats_in(indices.shape, tokens.shape):
        raise ArgumentValueError(
            f"{op}: {name} has shape {shape_text(indices)}, expected {shape_text(tokens)}"
            " (the shape of tokens) or its last dimensions"
        )


def _check_positions(op: str, given: Given) -> None:
    tokens, first = given["tokens"], given["first_position"]
    if given["positions"] is not None:
        return _check_beside_tokens(op, "positions", given["positions"], tokens)
    if first < 0:
        raise ArgumentValueError(f"{op}: first_position is {first}, expected 0 or more")
    last = first + (tokens.shape[-1] if tokens.dim() else 1)
    rows = given["position_weight"].shape[0]
    if last > rows and tokens.numel() > 0:
        raise ArgumentValueError(
            f"{op}: position_weight has {rows} rows, expected at least {last}"
            " (first_position and the last dimension of tokens)"
        )
    return None


def _check_add(op: str, given: Given) -> None:
    _check_positions(op, given)
    if (given["types"] is None) != (given["type_weight"] is None):
        missing, present = "types", "type_weight"
        if given["types"] is not None:
            missing, present = present, missing
        raise ArgumentValueError(f"{op}: {missing} is missing, expected it beside {present}")
    if given["types"] is not None:
        _check_beside_tokens(op, "types", given["types"], given["tokens"])


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
    indices: tuple[str, ...], tables: tuple[str, ...], op: Op, given: Given  # noqa: ARG001
) -> Ways:  # fmt: skip
    """By the columns of the tables, or by tokens: positions that nobody gives count on in their
    last dimension."""
    first = 1 if given.get("positions", 0) is not None else 2
    by_tokens = range(first, given[indices[0]].dim() + 1)
    return [
        dict.fromkeys((*tables, "y"), 1),
        *({**dict.fromkeys(indices, dim), "y": dim + 1} for dim in by_tokens),
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
    check=_check_add,
    memory={
        "dweight": partial(_gradient, "rows"),
        "dposition_weight": partial(_gradient, "position_rows"),
        "dtype_weight": partial(_gradient, "type_rows"),
    },
    jagged=False,
    triton=partial(_triton, "EMBEDDING_ADD"),
    text="weight[tokens] + position_weight[positions] + type_weight[types]",
)  # fmt: skip
