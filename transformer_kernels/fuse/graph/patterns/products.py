# SPDX-License-Identifier: MIT
"""Linear layers with an activation behind them, alone, in an MLP, or with a gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import Graph, Node

from .... import functional
from ....ops.pointwise.table import ACTIVATIONS
from ...patterns.activation import activation_of
from ..nodes import (
    VIEWS,
    ahead,
    behind,
    call,
    dropped,
    example,
    is_tensor,
    moved_again,
    name_of,
    tensors_of,
)
from ..region import Candidate, run
from ._pattern import Pattern, Place

_POINTWISE = frozenset((
    "add", "div", "erf", "gelu", "mul", "pow", "relu", "sigmoid", "silu", "square", "sub", "tanh",
))  # fmt: skip
_CURVED = frozenset(("erf", "gelu", "relu", "sigmoid", "silu", "tanh"))
_MOST_STEPS = 12
_GATED = {row.name: row.gated for row in ACTIVATIONS if row.gated}


class Product(NamedTuple):
    """A linear layer: y = x weight^T + bias, or x weight + bias where the weight is stored so."""

    node: Node
    x: Node
    weight: Node
    bias: Node | None
    is_transposed: bool

    def operands(self, graph: Graph) -> tuple[Node, Node | None]:
        """The weight as (outputs, inputs), and the bias."""
        weight = self.weight
        return graph.call_method("t", (weight,)) if self.is_transposed else weight, self.bias

    @property
    def tensors(self) -> tuple[Node, ...]:
        """The parameters, which a region takes as inputs."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def product_of(node: Any) -> Product | None:
    """The linear layer that a node computes; None for another node."""
    if not is_tensor(node):
        return None
    name = name_of(node)
    args: tuple[Any, ...] = node.args
    if name == "linear" and len(args) >= 2:
        bias: Any = args[2] if len(args) > 2 else node.kwargs.get("bias")
        return Product(node, args[0], args[1], bias, False)
    if name == "addmm" and len(args) == 3 and not node.kwargs:
        return Product(node, args[1], args[2], args[0], True)
    if name == "matmul" and is_tensor(args[1]) and example(args[1]).dim() == 2:
        turned = args[1]
        is_turned = name_of(turned) == "t" or (
            name_of(turned) == "getattr" and turned.args[1] == "T"
        )
        return Product(node, args[0], turned, None, True) if is_turned else None
    return None


class Activated(NamedTuple):
    """A linear layer and the activation of its result."""

    product: Product
    name: str  # the activation
    result: Node


def activated(product: Product) -> Activated | None:
    """Follows the result of a product through an activation, however it is written."""
    start = ahead(product.node, VIEWS)
    inside: list[Node] = []
    for node in _pointwise_behind(start):
        inside.append(node)
        if name_of(node) not in _CURVED and len(inside) == 1 and len(start.users) == 1:
            return None
        closed = all(set(n.users) <= set(inside) for n in (start, *inside[:-1]))
        if closed and any(name_of(n) in _CURVED for n in inside):
            name = activation_of(lambda x: _values(inside, start, x))
            if name is not None:
                return Activated(product, name, node)
    return None


def _pointwise_behind(start: Node) -> Iterator[Node]:
    """The operations that compute elementwise with the value and numbers alone, in the graph's
    order."""
    known, node, count = {start}, start.next, 0
    while count < _MOST_STEPS and node.op != "root":
        inputs = node.all_input_nodes
        if inputs and known.issuperset(inputs):
            if name_of(node) not in _POINTWISE:
                return
            known.add(node)
            count += 1
            yield node
        node = node.next


def _values(nodes: list[Node], start: Node, x: Tensor) -> Tensor:
    values: dict[Node, Any] = {start: x}
    run(nodes, values)
    result: Tensor = values[nodes[-1]]
    return result


class LinearActPattern(Pattern):
    name = "linear_act"
    anchors = frozenset(("addmm", "linear", "matmul"))

    def candidates(self, place: Place) -> Iterator[Candidate]:
        product = product_of(place.node)
        found = None if product is None else activated(product)
        if product is None or found is None:
            return
        start = ahead(product.node, VIEWS)

        def emit(graph: Graph) -> list[Node]:
            weight, bias = product.operands(graph)
            y = call(graph, functional.linear_act, product.x, weight, bias, found.name)
            return [moved_again(graph, product.node, start, y)]

        inputs = (product.x, *product.tensors)
        yield Candidate(self.name, "functional.linear_act", (found.result,), inputs, emit)


class MLPPattern(Pattern):
    name = "mlp"
    anchors = LinearActPattern.anchors

    def candidates(self, place: Place) -> Iterator[Candidate]:
        down = product_of(place.node)
        if down is None:
            return
        result = behind(down.x, VIEWS)
        if dropped(result)[1] == 0.0:  # a dropout that drops nothing
            result = behind(dropped(result)[0], VIEWS)
        up = next((p for p in _before(result) if (a := activated(p)) and a.result is result), None)
        found = None if up is None else activated(up)
        if up is None or found is None:
            return

        def emit(graph: Graph) -> list[Node]:
            parameters = (*up.operands(graph), *down.operands(graph))
            return [call(graph, functional.mlp, up.x, *parameters, found.name)]

        inputs = (up.x, *up.tensors, *down.tensors)
        yield Candidate(self.name, "functional.mlp", (down.node,), inputs, emit)


class GatedMLPPattern(Pattern):
    name = "gated_mlp"
    anchors = LinearActPattern.anchors

    def candidates(self, place: Place) -> Iterator[Candidate]:
        down = product_of(place.node)
        if down is None or not is_tensor(down.x) or name_of(down.x) != "mul":
            return
        sides: tuple[Any, ...] = down.x.args[:2]
        for gate_side, up_side in (sides, sides[::-1]):
            up = product_of(up_side)
            gate = next((p for p in _before(gate_side) if up is not None and p.x is up.x), None)
            found = None if gate is None else activated(gate)
            if up is None or gate is None or found is None or found.result is not gate_side:
                continue
            name = _GATED.get(found.name)
            if name is None:
                continue
            yield self._gated(gate, up, down, name)

    def _gated(self, gate: Product, up: Product, down: Product, name: str) -> Candidate:
        def emit(graph: Graph) -> list[Node]:
            (w, b), (u, ub), (d, db) = (p.operands(graph) for p in (gate, up, down))
            biases = {"bias": b, "up_bias": ub, "down_bias": db}
            return [call(graph, functional.gated_mlp, gate.x, w, u, d, name, **biases)]

        inputs = (gate.x, *gate.tensors, *up.tensors, *down.tensors)
        return Candidate(self.name, "functional.gated_mlp", (down.node,), inputs, emit)


def _before(node: Any) -> Iterator[Product]:
    """The products that a value may be the activation of."""
    waiting, steps = [node], 0
    while waiting and steps < 2 * _MOST_STEPS:
        one = waiting.pop()
        steps += 1
        if not is_tensor(one):
            continue
        product = product_of(one)
        if product is not None:
            yield product
        elif name_of(one) in _POINTWISE or name_of(one) in VIEWS:
            waiting += tensors_of(one)
