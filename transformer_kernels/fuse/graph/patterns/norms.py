# SPDX-License-Identifier: MIT
"""Norms, alone or of a residual sum, with dropout before it; and dropout by itself."""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any, NamedTuple

from torch.fx import Graph, Node

from .... import functional
from ..nodes import (
    CASTS,
    VIEWS,
    ahead,
    behind,
    call,
    dropped,
    example,
    is_tensor,
    moved_again,
    name_of,
    number_and_node,
    only_user,
    shape_of,
    tensors_of,
)
from ..region import Candidate
from ._pattern import Pattern, Place

_ARGUMENTS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}


class Norm(NamedTuple):
    """A norm over the last dimension of ``x``."""

    x: Node
    result: Node
    weight: Node | None
    bias: Node | None
    eps: float
    is_layer: bool
    zero_centered: bool = False

    @property
    def tensors(self) -> tuple[Node, ...]:
        return tuple(p for p in (self.weight, self.bias) if p is not None)

    def emit(self, graph: Graph, x: Node) -> Node:
        shape = shape_of(self.x)[-1:]
        option = {"zero_centered_weight": True} if self.zero_centered else {}
        if self.is_layer:
            last = (self.weight, self.bias, self.eps)
            return call(graph, functional.layer_norm, x, shape, *last, **option)
        return call(graph, functional.rms_norm, x, shape, self.weight, self.eps, **option)

    def emit_of_sum(self, graph: Graph, x: Node, residual: Node, p: float) -> tuple[Node, Node]:
        """The norm of the sum of ``x`` behind its dropout and the residual, and that sum."""
        shape = shape_of(self.x)[-1:]
        last = (self.weight, self.bias) if self.is_layer else (self.weight,)
        kind = "layer_norm" if self.is_layer else "rms_norm"
        option: dict[str, Any] = {"eps": self.eps}
        if self.zero_centered:
            option["zero_centered_weight"] = True
        if p:
            function = getattr(functional, f"bias_dropout_add_{kind}")
            both = call(graph, function, x, None, residual, *last, p=p, **option)
        else:
            function = getattr(functional, f"add_{kind}")
            both = call(graph, function, x, residual, shape, *last, **option)
        y, total = (call(graph, getitem, both, i) for i in range(2))
        return y, total


def norms_at(node: Node) -> Iterator[Norm]:
    """The norms that a node may be the heart of, the largest first."""
    name = name_of(node)
    if name == "rsqrt":
        yield from _written_out(node)
    elif name in _ARGUMENTS:
        given: dict[str, Any] = dict(zip(_ARGUMENTS[name], node.args, strict=False))
        given = {"eps": 1e-5 if name == "layer_norm" else None, **given, **node.kwargs}
        x, eps = given["input"], given["eps"]
        is_last = len(given["normalized_shape"]) == 1
        if is_tensor(x) and is_last and isinstance(example(x).shape[-1], int) and eps is not None:
            is_layer = name == "layer_norm"
            yield Norm(x, node, given.get("weight"), given.get("bias"), float(eps), is_layer)


def _written_out(root: Node) -> Iterator[Norm]:
    """x rsqrt(mean(x^2) + eps), scaled by w or 1 + w."""
    total: Any = root.args[0]
    mean = number_and_node(total) if is_tensor(total) and name_of(total) == "add" else None
    square = None if mean is None or name_of(mean[0]) != "mean" else mean[0].args[0]
    if mean is None or not is_tensor(square) or name_of(square) not in ("mul", "pow", "square"):
        return
    if not isinstance(example(square).shape[-1], int):
        return
    user = only_user(root)
    if user is None or name_of(user) != "mul":
        return
    x = behind(tensors_of(square)[0], CASTS)
    scaled = ahead(user, CASTS)
    behind_it = only_user(scaled)
    if behind_it is not None and name_of(behind_it) == "mul":
        weight = next((t for t in tensors_of(behind_it) if t is not scaled), None)
        yield from _weighted(x, behind_it, weight, mean[1])
    yield Norm(x, scaled, None, None, mean[1], False)


def _weighted(x: Node, result: Node, weight: Node | None, eps: float) -> Iterator[Norm]:
    if weight is None:
        return
    for end in dict.fromkeys((ahead(result, CASTS), result)):
        one = number_and_node(weight) if name_of(weight) == "add" else None
        if one is not None and one[1] == 1.0:
            yield Norm(x, end, behind(one[0], CASTS), None, eps, False, True)
        elif example(weight).dim() == 1:
            yield Norm(x, end, weight, None, eps, False)


def _terms(total: Any) -> tuple[Node, Node] | None:
    """The two tensors of one shape and dtype that a sum adds."""
    if not is_tensor(total) or name_of(total) != "add" or total.kwargs:
        return None
    terms = tensors_of(total)
    if len(terms) != 2 or len(total.args) != 2:
        return None
    a, b = terms
    is_alike = shape_of(a) == shape_of(b) and example(a).dtype is example(b).dtype
    return (a, b) if is_alike else None


def _branch_first(terms: tuple[Node, Node]) -> tuple[Node, float, Node]:
    """The branch before its dropout, its probability, and the residual."""
    for one, other in (terms, terms[::-1]):
        x, p = dropped(one)
        if p and len(one.users) == 1:
            return x, p, other
    return terms[1], 0.0, terms[0]


class SumNormPattern(Pattern):
    """A residual sum with a norm behind it, with or without dropout before: one pass, whose results
    are both."""

    anchors = frozenset(("layer_norm", "rms_norm", "rsqrt"))

    def __init__(self, name: str, drops: bool) -> None:
        self.name = name
        self._drops = drops

    def candidates(self, place: Place) -> Iterator[Candidate]:
        for norm in norms_at(place.node):
            total = behind(norm.x, CASTS | VIEWS)
            terms = _terms(total)
            if terms is None or shape_of(total)[-1:] != shape_of(norm.x)[-1:]:
                continue
            x, p, residual = _branch_first(terms)
            if bool(p) is not self._drops:
                continue

            def emit(
                graph: Graph, norm: Norm = norm, parts: Any = (x, residual, p), total: Node = total
            ) -> list[Node]:
                y, made = norm.emit_of_sum(graph, *parts)
                return [moved_again(graph, total, norm.x, y), made]

            kind = "layer_norm" if norm.is_layer else "rms_norm"
            name = f"functional.bias_dropout_add_{kind}" if p else f"functional.add_{kind}"
            inputs = (x, residual, *norm.tensors)
            yield Candidate(self.name, name, (norm.result, total), inputs, emit)


class NormPattern(Pattern):
    name = "norm"
    anchors = SumNormPattern.anchors

    def candidates(self, place: Place) -> Iterator[Candidate]:
        for norm in norms_at(place.node):

            def emit(graph: Graph, norm: Norm = norm) -> list[Node]:
                return [norm.emit(graph, norm.x)]

            name = "functional.layer_norm" if norm.is_layer else "functional.rms_norm"
            yield Candidate(self.name, name, (norm.result,), (norm.x, *norm.tensors), emit)


class DropoutPattern(Pattern):
    """Dropout, with the residual sum behind it."""

    name = "dropout"
    anchors = frozenset(("dropout",))

    def candidates(self, place: Place) -> Iterator[Candidate]:
        node = place.node
        x, p = dropped(node)
        if not p or not is_tensor(x):
            return
        total = only_user(node)
        terms = _terms(total)
        if total is not None and terms is not None:
            residual = terms[0] if terms[1] is node else terms[1]

            def emit_sum(graph: Graph) -> list[Node]:
                return [call(graph, functional.bias_dropout_add, x, None, residual, p=p)]

            yield Candidate(
                self.name, "functional.bias_dropout_add", (total,), (x, residual), emit_sum
            )

        def emit(graph: Graph) -> list[Node]:
            return [call(graph, functional.dropout, x, p=p)]

        yield Candidate(self.name, "functional.dropout", (node,), (x,), emit)
