# SPDX-License-Identifier: MIT
"""The embeddings' ops. A ``padding_idx`` below 0 is none."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Size, Tensor, nn
from torch.nn import functional as F

from ..._errors import ArgumentValueError, shape_text
from .._declare import Kernels
from .._declare_arguments import Flag, Given, Indices, Integer, Result, Table
from .._register import declare
from . import _formula


def _shape_of_y(tokens: str, given: Given) -> tuple[int, ...]:
    return (*given[tokens].shape, given["weight"].shape[1])


def _gradient(rows: str, given: Given) -> Tensor:
    dy: Tensor = given["dy"]
    return dy.new_empty(given[rows], dy.shape[-1])


def _repeats_in(shape: Size, tokens: Size) -> bool:
    """Whether ``shape`` is that of ``tokens`` or of their last dimensions."""
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


def _triton(name: str) -> Kernels:
    from . import embedding_triton

    kernels: Any = getattr(embedding_triton, name)
    return Kernels(*kernels)


EMBEDDING = declare(
    "embedding",
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
    runs_kinds=False,
    triton=partial(_triton, "EMBEDDING"),
    replaces=(F.embedding, nn.Embedding),
    text="weight[indices]",
)  # fmt: skip

EMBEDDING_ADD = declare(
    "embedding_add",
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
    runs_kinds=False,
    triton=partial(_triton, "EMBEDDING_ADD"),
    text="weight[tokens] + position_weight[positions] + type_weight[types]",
)  # fmt: skip
