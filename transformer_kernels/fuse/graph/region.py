# SPDX-License-Identifier: MIT
"""Parts of a graph: what a pattern would replace, and what it would put there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from .nodes import MOVES, name_of

_MOST_NODES = 96
_OURS = __name__.partition(".")[0]
_PROBABILITIES = frozenset(("dropout", "dropout_p", "p"))
# The place of dropout_p among the arguments of PyTorch's functions.
_PLACES = {"multi_head_attention_forward": 10, "scaled_dot_product_attention": 4}

Emit = Callable[[Graph], Sequence[Node]]
Draw = Callable[[], torch.Tensor]


@dataclass(eq=False)
class Candidate:
    """A place where a pattern may stand.

    ``emit`` writes our calls to the graph and returns a node for each of ``outputs``, which are
    computed from ``inputs`` and parameters alone. ``draws`` makes the random numbers of inputs that
    are no arbitrary ones.
    """

    pattern: str
    function: str  # "functional.attention"
    outputs: tuple[Node, ...]
    inputs: tuple[Node, ...]
    emit: Emit
    draws: dict[Node, Draw] = field(default_factory=dict)


@dataclass(eq=False)
class Region:
    """The operations between inputs and outputs, in the graph's order."""

    nodes: list[Node]
    inputs: list[Node]  # parameters and sizes included
    leaks: Node | None  # an intermediate result that others read as well


def region_of(candidate: Candidate, order: dict[Node, int]) -> Region | None:
    """The operations that compute a candidate's outputs; None where there are too many."""
    given = dict.fromkeys(candidate.inputs)
    found: set[Node] = set()
    waiting = list(candidate.outputs)
    while waiting:
        node = waiting.pop()
        if node in found or node in given:
            continue
        if node.op not in ("call_function", "call_method"):
            given[node] = None
            continue
        found.add(node)
        waiting += node.all_input_nodes
        if len(found) > _MOST_NODES:
            return None
    kept = (*candidate.outputs, *candidate.inputs)
    leaks = (
        node
        for node in found
        if node not in kept and name_of(node) not in MOVES and not found.issuperset(node.users)
    )
    return Region(sorted(found, key=order.__getitem__), list(given), next(leaks, None))


def may_drop(node: Node) -> bool:
    """Whether a call of ours draws random numbers."""
    return any(node.kwargs.get(name) for name in _PROBABILITIES)


def _without_dropout(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments of a call that drops nothing."""
    module = getattr(node.target, "__module__", "") or ""
    ours = module.startswith(_OURS)
    names = _PROBABILITIES if ours else {"dropout_p"}
    kwargs = {k: 0.0 if k in names else v for k, v in kwargs.items()}
    place = _PLACES.get(name_of(node))
    if place is not None and len(args) > place:
        args = (*args[:place], 0.0, *args[place + 1 :])
    return args, kwargs


def run(nodes: Sequence[Node], values: dict[Node, Any]) -> None:
    """Computes nodes from the values that are there, and adds theirs. Nothing is dropped."""
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if name_of(node) == "dropout":
            values[node] = args[0] if args else kwargs["input"]
            continue
        args, kwargs = _without_dropout(node, args, kwargs)
        if node.op == "call_method":
            values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            function: Any = node.target
            values[node] = function(*args, **kwargs)
