# SPDX-License-Identifier: MIT
"""Rotary position embedding, written out: x cos + rotate_half(x) sin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .... import functional
from ..nodes import MOVES, call, example, is_tensor, name_of, number_and_node, shape_of, tensors_of
from ..region import Candidate, Draw
from ._pattern import Pattern, Place


def _first(node: Node) -> Any:
    return node.args[0] if node.args else None


def _is_doubled(table: Any) -> bool:
    """Whether the second half of a table of cosines or sines is its first."""
    while is_tensor(table):
        name, parts = name_of(table), _first(table)
        if name == "cat":
            return len(parts) == 2 and parts[0] is parts[1]
        scaled = number_and_node(table) if name == "mul" else None
        if scaled is not None:
            table = scaled[0]
        elif name in MOVES or name in ("cos", "sin"):
            table = parts
        else:
            return False
    return False


def _turned(node: Any) -> Node | None:
    """The x of cat(-x2, x1), where x1 and x2 are its halves."""
    if not is_tensor(node) or name_of(node) != "cat" or len(_first(node)) != 2:
        return None
    second, first = _first(node)
    if not is_tensor(second) or name_of(second) != "neg":
        return None
    halves = (_first(second), first)
    if not all(is_tensor(half) and name_of(half) == "getitem" for half in halves):
        return None
    x, other = (_first(half) for half in halves)
    return x if other is x and is_tensor(x) else None


def _terms(total: Node) -> tuple[Node, Node, Node] | None:
    """x, cosines and sines of a rotation."""
    products = [t for t in tensors_of(total) if name_of(t) == "mul" and len(tensors_of(t)) == 2]
    if len(products) != 2:
        return None
    for one, other in (products, products[::-1]):
        a, b = tensors_of(other)
        for turned, sin in ((a, b), (b, a)):
            x = _turned(turned)
            cos = next((t for t in tensors_of(one) if t is not x), None)
            if x is not None and cos is not None and x in tensors_of(one):
                return x, cos, sin
    return None


class RopePattern(Pattern):
    name = "rope"
    anchors = frozenset(("add",))

    def candidates(self, place: Place) -> Iterator[Candidate]:
        found = _terms(place.node)
        if found is None:
            return
        x, *tables = found
        rank = example(x).dim()
        is_one = all(set(shape_of(t)[: rank - 2]) <= {1} for t in tables)
        if rank != 4 or not is_one or not all(example(t).dim() == rank for t in tables):
            return
        if not all(map(_is_doubled, tables)) or not isinstance(example(x).shape[-1], int):
            return
        half = example(x).shape[-1] // 2

        def emit(graph: Graph) -> list[Node]:
            rows = (0, 0, slice(None), slice(0, half))
            cos, sin = (graph.call_method("__getitem__", (t, rows)) for t in tables)
            return [call(graph, functional.rope, x, None, cos, sin, heads_first=True)]

        draws: dict[Node, Draw] = {table: _draw(table) for table in tables}
        yield Candidate(self.name, "functional.rope", (place.node,), (x, *tables), emit, draws)


def _draw(table: Node) -> Callable[[], Tensor]:
    def drawn() -> Tensor:
        *rows, features = shape_of(table)
        like = example(table)
        half = torch.randn(*rows, features // 2, device=like.device).to(like.dtype)
        return torch.cat((half, half), -1)

    return drawn
