# SPDX-License-Identifier: MIT
"""Declares the graph ops. Edges are those of csrc/include/transformer_kernels/graph/edges.h."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, check_floating, dtype_name, shape_text
from .._declare import Kernels, Op, Ways
from .._declare_arguments import Argument, Given, Indices, Integer, Result, Table
from .._register import declare
from .._work import size_of, sizes_of
from . import _formula, _stock


@dataclass(frozen=True)
class EdgeWeights(Argument):
    """Weights (E, H) with the dtype of a matrix; H divides the number of its columns."""

    optional: bool = True
    of: str = "x"

    def check(self, op: str, value: Tensor, given: Given) -> None:
        of = given[self.of]
        check_floating(op, self.name, value)
        if value.device != of.device:
            raise ArgumentValueError(
                f"{op}: {self.name} is on {value.device}, expected {of.device}"
            )
        if value.dim() != 2:
            raise ArgumentValueError(f"{op}: {self.name} has {value.dim()} dimensions, expected 2")
        if value.dtype is not of.dtype:
            raise ArgumentTypeError(
                f"{op}: {self.name} is {dtype_name(value.dtype)}, expected {dtype_name(of.dtype)}"
                f" (the dtype of {self.of})"
            )


def _edges(of: str, *, indices_optional: bool = True) -> tuple[Argument, ...]:
    return (
        Indices("offsets", of=of), Indices("indices", optional=indices_optional, of=of),
        *(Indices(name, optional=True, of=of)
          for name in ("order", "back_offsets", "back_indices", "back_order")),
    )  # fmt: skip


EDGES = "offsets, indices, order, back_offsets, back_indices, back_order"


def _check_count(op: str, name: str, value: Tensor | None, count: int, reason: str) -> None:
    if value is not None and value.numel() != count:
        raise ArgumentValueError(
            f"{op}: {name} has {value.numel()} elements, expected {count} ({reason})"
        )


def _number_of_edges(across: str, given: Given) -> int:
    indices = given.get("indices")
    return int(given[across].shape[0] if indices is None else indices.numel())


def _check_edges(across: str, op: str, given: Given) -> None:
    offsets, indices = given["offsets"], given.get("indices")
    if offsets.dim() != 1 or offsets.numel() == 0:
        raise ArgumentValueError(
            f"{op}: offsets has shape {shape_text(offsets)}, expected one dimension of at least 1"
        )
    edges, rows = _number_of_edges(across, given), given[across].shape[0]
    of = f"the rows of {across}" if indices is None else "those of indices"
    _check_count(op, "order", given["order"], edges, of)
    _check_count(op, "back_offsets", given.get("back_offsets"), rows + 1, "a segment for each row")
    for name in ("back_indices", "back_order"):
        _check_count(op, name, given.get(name), edges, "the edges")


def _check_gather(op: str, given: Given) -> None:
    if given["reduce"] not in (_formula.SUM, _formula.MEAN, _formula.MAX):
        raise ArgumentValueError(
            f"{op}: reduce is {given['reduce']}, expected 0 (sum), 1 (mean) or 2 (max)"
        )
    _check_edges("x", op, given)
    weight, cols = given["weight"], given["x"].shape[1]
    if weight is None:
        return
    rows, heads = weight.shape
    if rows != _number_of_edges("x", given):
        raise ArgumentValueError(
            f"{op}: weight has {rows} rows, expected {_number_of_edges('x', given)}"
            " (one for each edge)"
        )
    if heads == 0 or cols % heads:
        raise ArgumentValueError(
            f"{op}: weight has {heads} columns, expected a divisor of {cols} (the columns of x)"
        )


def _check_dot(op: str, given: Given) -> None:
    heads, (rows, cols) = given["heads"], given["a"].shape
    if heads <= 0 or cols % heads:
        raise ArgumentValueError(
            f"{op}: heads is {heads}, expected a divisor of {cols} (the columns of a)"
        )
    _check_edges("b", op, given)
    segments = given["offsets"].numel() - 1
    if rows != segments:
        raise ArgumentValueError(
            f"{op}: a has {rows} rows, expected {segments} (the segments of offsets)"
        )


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
    """By columns, where no weights have heads of them: edges lead anywhere."""
    return () if given.get("weight") is not None else ({"x": 1, "y": 1},)


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
    arguments=(Table("x"), *_edges("x"), EdgeWeights("weight"), Integer("reduce")),
    results=(
        Result("y", "x", _reduced_shape),
        Result("chosen", "x", _reduced_shape, saved=True),
    ),
    backward=f"(dy, x, {EDGES}, weight, chosen, reduce, need_dx, need_dweight) -> dx, dweight",
    formula=_formula.gather_reduce,
    statistics=_chosen,
    gradient=_formula.gather_reduce_gradient,
    check=_check_gather,
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
    check=_check_dot,
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
    check=partial(_check_edges, "x"),
    jagged=False,
    triton=partial(_triton, "SEGMENT_SOFTMAX"),
    text="exp(x - max(x)) / sum(exp(x - max(x))) over the rows of each segment",
)
