# SPDX-License-Identifier: MIT
"""Declares the graph ops. Edges are those of csrc/include/transformer_kernels/graph/edges.h."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from .._declare import Kernels, Op, Ways
from .._declare_arguments import Argument, Given, Indices, Integer, Result, Table
from .._parallel import SUMMED
from .._register import declare
from .._work import size_of, sizes_of
from . import _formula, _stock


def _edges(of: str, *, indices_optional: bool = True) -> tuple[Argument, ...]:
    return (
        Indices("offsets", of=of), Indices("indices", optional=indices_optional, of=of),
        *(Indices(name, optional=True, of=of)
          for name in ("order", "back_offsets", "back_indices", "back_order")),
    )  # fmt: skip


EDGES = "offsets, indices, order, back_offsets, back_indices, back_order"


def _number_of_edges(across: str, given: Given) -> int:
    indices = given.get("indices")
    return int(given[across].shape[0] if indices is None else indices.numel())


def _chosen(values: Given) -> Tensor:
    names = ("x", "offsets", "indices", "order", "weight", "reduce")
    return _formula.chosen_edges(*(values[name] for name in names))


def _reduced_shape(given: Given) -> tuple[int, ...]:
    return (given["offsets"].numel() - 1, given["x"].shape[1])


def _empty_chosen(given: Given) -> Tensor:
    shape = _reduced_shape(given) if given["reduce"] == _formula.MAX else (0,)
    chosen: Tensor = given["offsets"].new_empty(shape)
    return chosen


def _by_columns(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By columns, or by heads of them, which weights have one number of: edges lead anywhere."""
    return ({"x": 1, "y": 1, "weight": 1},)


def _by_heads(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """By heads, or by terms of one head's products."""
    if given["heads"] == 1:
        return ({"a": 1, "b": 1, "y": SUMMED},)
    return ({"a": 1, "b": 1, "y": 1, "heads": 1},)


def _size_of_row(x: Tensor) -> int:
    return size_of(x) // max(len(x), 1)


def _moved_by_gather(pass_: str, given: Given) -> int:
    """A row for each edge either way, with the number of its other end; products of both ends as
    well where edges have weights. Without ``indices`` the edges are rows, read in their order."""
    indices, weight = given.get("indices"), size_of(given.get("weight"))
    edges = _number_of_edges("x", given)
    numbers = size_of(given["offsets"] if indices is None else indices)
    forward = edges * _size_of_row(given["x"]) + numbers + weight
    if pass_ == "forward":
        return forward + size_of(given["y"])
    dy = given["dy"]
    gathered = size_of(dy) if indices is None else edges * _size_of_row(dy)
    backward = gathered + numbers + sizes_of(given, ("dx",))
    if weight:
        backward += sizes_of(given, ("weight", "dweight", "back_order", "dy")) + forward
    return backward


def _moved_by_dot(pass_: str, given: Given) -> int:
    """The rows of both ends of each edge."""
    ends = len(given["indices"]) * (_size_of_row(given["a"]) + _size_of_row(given["b"]))
    of_edges = ("y",) if pass_ == "forward" else ("dy", "da", "db")
    return ends + sizes_of(given, ("indices", *of_edges))


def _triton(name: str) -> Kernels:
    from . import graph_triton

    kernels: Any = getattr(graph_triton, name)
    return Kernels(*kernels)


GATHER_REDUCE = declare(
    "gather_reduce",
    function="functional.gather_reduce",
    stock=_stock.gather_reduce,
    parallel=_by_columns,
    moved=_moved_by_gather,
    arguments=(Table("x"), *_edges("x"), Argument("weight", optional=True), Integer("reduce")),
    results=(
        Result("y", "x", _reduced_shape),
        Result("chosen", "x", _reduced_shape, saved=True),
    ),
    backward=f"(dy, x, {EDGES}, weight, chosen, reduce, need_dx, need_dweight) -> dx, dweight",
    formula=_formula.gather_reduce,
    statistics=_chosen,
    gradient=_formula.gather_reduce_gradient,
    memory={"chosen": _empty_chosen},
    has_inference=False,
    jagged=False,
    triton=partial(_triton, "GATHER_REDUCE"),
    text="reduce over edges e of weight[e] * x[source of e]",
)

EDGE_DOT = declare(
    "edge_dot",
    function="functional.edge_dot",
    stock=_stock.edge_dot,
    parallel=_by_heads,
    moved=_moved_by_dot,
    arguments=(
        Table("a"), Table("b", of="a"), *_edges("a", indices_optional=False), Integer("heads"),
    ),
    results=(
        Result("y", "a", lambda given: (_number_of_edges("b", given), given["heads"])),
    ),
    backward=f"(dy, a, b, {EDGES}, need_da, need_db) -> da, db",
    formula=_formula.edge_dot,
    gradient=_formula.edge_dot_gradient,
    jagged=False,
    triton=partial(_triton, "EDGE_DOT"),
    text="a[target of e] . b[source of e], head by head",
)  # fmt: skip

SEGMENT_SOFTMAX = declare(
    "segment_softmax",
    function="functional.segment_softmax",
    stock=_stock.segment_softmax,
    parallel=_by_columns,
    arguments=(Table("x"), Indices("offsets"), Indices("order", optional=True)),
    results=(Result("y"),),
    backward="(dy, y, offsets, order) -> dx",
    formula=_formula.segment_softmax,
    gradient=_formula.segment_softmax_gradient,
    jagged=False,
    triton=partial(_triton, "SEGMENT_SOFTMAX"),
    text="exp(x - max(x)) / sum(exp(x - max(x))) over the rows of each segment",
)
