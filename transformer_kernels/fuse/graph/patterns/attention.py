# SPDX-License-Identifier: MIT
"""Attention, as one function or written out: product, scale, mask, softmax, dropout, product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem, mul
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from .... import functional
from ...site import RefusedError
from .. import calls
from ..constants import band_of, value_of
from ..nodes import (
    CASTS,
    IN_PLACE,
    VIEWS,
    are_equal,
    are_same,
    behind,
    bound,
    call,
    constant,
    dropped,
    example,
    is_tensor,
    keeps_shape,
    name_of,
    number_and_node,
    only_user,
    shape_of,
    tensors_of,
)
from ..region import Candidate, Draw
from ._pattern import Pattern, Place

_PRODUCTS = frozenset(("bmm", "matmul"))
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_FUNCTION = "functional.attention"
_FILLS = {"masked_fill": 0, "where": 1}  # the place of the scores among the arguments
_LEAST = -1e9  # a score from here down leaves nothing of what it is added to


def ungrouped(heads: Node) -> Node:
    """Keys or values before each of their heads is repeated for a group of queries."""
    spread = behind(heads, frozenset(("reshape",)))
    if spread is heads or not isinstance(spread, Node) or name_of(spread) != "expand":
        return heads
    few = behind(spread.args[0], frozenset(("getitem", "unsqueeze")))
    fits = (
        is_tensor(few)
        and example(few).dim() == 4
        and example(spread).dim() == 5
        and shape_of(spread)[:2] == shape_of(few)[:2]
        and shape_of(spread)[3:] == shape_of(few)[2:]
    )
    return few if fits else heads


class Bias(NamedTuple):
    """Scores that are added."""

    node: Node
    factor: float = 1.0  # of the sum
    of_windows: bool = False  # whether scores (B * W, H, ...) are (B, W, H, ...) in the sum

    def emit(self, graph: Graph, q: Node) -> Node:
        node = call(graph, calls.windowed, self.node, q) if self.of_windows else self.node
        return node if self.factor == 1.0 else call(graph, mul, node, self.factor)


class Hidden(NamedTuple):
    """Scores that a boolean mask sets to a number from which no weight comes."""

    mask: Node
    value: float
    is_seen: bool  # whether the mask is true where keys are seen


@dataclass
class Scores:
    """How scores come from the product of queries and keys."""

    scale: float = 1.0
    softcap: float = 0.0
    factors: list[Node] = field(default_factory=list)  # of heads, before all else
    biases: list[Bias] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    in_windows: bool = False  # whether the windows of a batch have a dimension of their own


class Known(NamedTuple):
    """Facts about a mask, or about scores that are added, which hold in every call."""

    options: dict[str, Any]  # of our call
    says_more: bool  # than these options
    draws: dict[Node, Draw]


def _known(node: Node, order: dict[Node, int], is_hidden: bool = False) -> Known:
    """The facts about a mask, which may be true where keys are hidden."""
    value = value_of(node, order)
    band = None if value is None else band_of(~value if is_hidden else value)
    if value is None or band is None:
        return Known({}, True, {})
    one = value[:1] if value.dim() > 2 and band.is_all else value  # all of a batch are alike
    return Known({"causal": True, "window": band.left}, not band.is_all, {node: lambda: one})


class AttentionPattern(Pattern):
    name = "attention"
    anchors = frozenset((
        "multi_head_attention_forward", "scaled_dot_product_attention", "softmax",
    ))  # fmt: skip

    def candidates(self, place: Place) -> Iterator[Candidate]:
        name = name_of(place.node)
        if name == "softmax":
            yield from self._written_out(place)
        elif name == "scaled_dot_product_attention":
            yield from self._function(place)
        else:
            yield from self._module(place)

    # ---- PyTorch's function ---------------------------------------------------------------------

    def _function(self, place: Place) -> Iterator[Candidate]:
        node = place.node
        given: dict[str, Any] = {**dict(zip(_SDPA, node.args, strict=False)), **node.kwargs}
        q, k, v, mask = [given.get(name) for name in _SDPA[:4]]
        if not (is_tensor(q) and is_tensor(k) and is_tensor(v)):
            return
        few = ungrouped(k), ungrouped(v)
        options = {"scale": given.get("scale"), "dropout": float(given.get("dropout_p") or 0.0)}
        causal = bool(given.get("is_causal"))
        square = are_equal(example(q).shape[-2], example(k).shape[-2])
        if (not causal or square) and example(q).dim() == 4:
            yield self._attend(node, (q, *few), mask, {**options, "causal": causal}, place)

        def emit(graph: Graph) -> list[Node]:
            target = functional.scaled_dot_product_attention
            return [graph.call_function(target, node.args, node.kwargs)]

        tensors = tuple(tensors_of(node))
        yield Candidate(
            self.name, "functional.scaled_dot_product_attention", (node,), tensors, emit
        )

    def _attend(
        self, node: Node, heads: Sequence[Node], mask: Any, options: dict[str, Any], place: Place
    ) -> Candidate:
        known = Known({}, False, {}) if mask is None else _known(mask, place.order)
        kept = mask if known.says_more else None
        is_bool = kept is not None and example(kept).dtype is torch.bool
        others = (() if is_bool or kept is None else (kept,), kept if is_bool else None)

        def emit(graph: Graph) -> list[Node]:
            given = {**options, **known.options}
            return [call(graph, calls.attend, *heads, *others, **given)]

        inputs = (*heads, *([] if mask is None else [mask]))
        return Candidate(self.name, _FUNCTION, (node,), inputs, emit, known.draws)

    # ---- PyTorch's module -----------------------------------------------------------------------

    def _module(self, place: Place) -> Iterator[Candidate]:
        node = place.node
        out = [user for user in node.users if name_of(user) == "getitem" and user.args[1] == 0]
        if len(out) != 1 or len(node.users) != 1:  # the weights are asked for
            return

        def emit(graph: Graph) -> list[Node]:
            arguments = {**bound(node), "need_weights": False}
            both = call(graph, calls.multi_head_attention, **arguments)
            return [call(graph, getitem, both, 0)]

        yield Candidate(self.name, _FUNCTION, (out[0],), tuple(tensors_of(node)), emit)

    # ---- written out ----------------------------------------------------------------------------

    def _written_out(self, place: Place) -> Iterator[Candidate]:
        softmax = place.node
        end = _onward(softmax)
        user = only_user(end)
        probability = 0.0
        if user is not None and dropped(user)[0] is end:
            probability = dropped(user)[1]
            end = _onward(user)
            user = only_user(end)
        if user is None or name_of(user) not in _PRODUCTS or user.args[0] is not end:
            return
        v: Any = user.args[1]
        scores = Scores()
        product = _scores(softmax.args[0], scores)
        if product is None or not is_tensor(v) or len(tensors_of(product)) != 2:
            raise RefusedError("its scores are made in a way that our attention has not")
        q, k = tensors_of(product)
        if product.args[:2] != (q, k) or example(q).dim() not in (3, 4):
            raise RefusedError("its heads are no tensors of 3 or 4 dimensions")
        options: dict[str, Any] = {
            "scale": scores.scale, "softcap": scores.softcap, "dropout": probability,
        }  # fmt: skip
        biases: list[Bias] = []
        hidden: list[Hidden] = []
        draws: dict[Node, Draw] = {}
        terms: list[Bias | Hidden] = [*scores.biases, *scores.hidden]
        for term in terms:
            node = term.node if isinstance(term, Bias) else term.mask
            known = Known({}, True, {})
            if not isinstance(term, Bias) or term == Bias(node):
                hides = isinstance(term, Hidden) and not term.is_seen
                known = _known(node, place.order, hides)
            if known.options and "causal" not in options:
                options |= known.options
                draws |= known.draws
                if not known.says_more:
                    continue
            if isinstance(term, Bias):
                biases.append(term)
            else:
                hidden.append(term)

        def emit(graph: Graph) -> list[Node]:
            added = [one.emit(graph, q) for one in biases]
            added += [call(graph, calls.hiding, *one, q) for one in hidden]
            scaled = q
            for factor in scores.factors:
                scaled = call(graph, mul, scaled, factor)
            return [call(graph, calls.attend_transposed, scaled, k, v, tuple(added), **options)]

        read = (*scores.factors, *(one.node for one in scores.biases))
        inputs = (q, k, v, *read, *(one.mask for one in scores.hidden))
        yield Candidate(self.name, _FUNCTION, (user,), inputs, emit, draws)


def _scores(node: Any, found: Scores) -> Node | None:
    """Follows scores back to the product, and notes what is done to them on the way."""
    steps: list[Node] = []
    while isinstance(node, Node) and name_of(node) not in _PRODUCTS:
        steps.append(node)
        if not is_tensor(node):
            return None
        name = _name(node)
        if name in CASTS or name in VIEWS or name == "tanh":
            node = node.args[0]
        elif name in ("div", "mul") and number_and_node(node) is not None:
            node = number_and_node(node)[0]  # type: ignore[index]
        elif name in ("add", "mul") and len(tensors_of(node)) == 2 and not node.kwargs:
            node = _larger(*tensors_of(node))
        elif name in _FILLS and _hidden(node) is not None:
            node = node.args[_FILLS[name]]
        else:
            return None
    if not isinstance(node, Node) or not is_tensor(node):
        return None
    chain = node
    for step in reversed(steps):
        if not _apply(step, chain, found):
            return None
        chain = step
    return None if found.in_windows else node


def _name(node: Node) -> str:
    """The operation's name, out of place."""
    name = name_of(node)
    return IN_PLACE.get(name, name)


def _onward(node: Node) -> Node:
    """The value that this one becomes by casts, and by views that leave its shape."""
    user = only_user(node)
    while user is not None and user.args[:1] == (node,) and _stays(user):
        node, user = user, only_user(user)
    return node


def _stays(node: Node) -> bool:
    return name_of(node) in CASTS or keeps_shape(node)


def _hidden(node: Node) -> Hidden | None:
    """The mask of an operation that sets scores; None where a weight could come of the number."""
    if name_of(node) not in _FILLS or len(node.args) != 3:
        return None
    is_where = name_of(node) == "where"
    mask, value = node.args[0 if is_where else 1], constant(node.args[2])
    if not is_tensor(mask) or value is None or example(mask).dtype is not torch.bool:
        return None
    least = max(_LEAST, torch.finfo(example(node).dtype).min)
    return Hidden(mask, value, is_where) if value <= least else None


def _larger(a: Node, b: Node) -> Node:
    """The scores among the two terms of a sum: what is made from a product, by few steps."""
    for one in (a, b):
        node: Any = one
        for _ in range(6):
            if isinstance(node, Node) and name_of(node) in _PRODUCTS:
                return one
            if not isinstance(node, Node) or not tensors_of(node):
                break
            node = tensors_of(node)[0]
    return a


def _apply(step: Node, scores: Node, found: Scores) -> bool:
    """Notes one step; whether it is one that attention has at this place."""
    name = _name(step)
    if _stays(step):
        return True
    if name in VIEWS:
        return _apply_view(example(scores).shape, example(step).shape, found)
    if name == "tanh":
        found.softcap = 1.0
        return not found.biases and not found.hidden
    if name == "add":
        return _apply_sum(step, scores, found)
    fill = _hidden(step)
    if fill is not None:
        found.hidden.append(fill)
        return not found.in_windows
    pair = number_and_node(step)
    if pair is None:
        return _apply_factor(step, scores, found)
    if found.hidden or (name == "div" and constant(step.args[0]) is not None):
        return False
    factor = 1 / pair[1] if name == "div" else pair[1]
    found.scale *= factor
    found.softcap *= factor  # of what is capped; it is 0 before that
    found.biases = [bias._replace(factor=factor * bias.factor) for bias in found.biases]
    return not (found.biases and found.softcap)


def _apply_view(before: Sequence[Any], after: Sequence[Any], found: Scores) -> bool:
    """Notes that windows get a dimension of their own, (B * W, H, T, T) as (B, W, H, T, T), or lose
    it again."""
    flat, split = (before, after) if len(before) < len(after) else (after, before)
    found.in_windows = flat is before
    return len(flat) == 4 and len(split) == 5 and are_same(flat[1:], split[2:])


def _apply_sum(step: Node, scores: Node, found: Scores) -> bool:
    added = [x for x in tensors_of(step) if x is not scores]
    if len(added) != 1:
        return False
    found.biases.append(Bias(added[0], of_windows=found.in_windows))
    shape = example(added[0]).shape
    has_all = len(shape) > 3 and isinstance(shape[-4], int) and shape[-4] > 1  # all windows
    return has_all or not found.in_windows


def _apply_factor(step: Node, scores: Node, found: Scores) -> bool:
    """Notes a tensor by which scores are multiplied before all else, a number for each head."""
    factors = [x for x in tensors_of(step) if x is not scores]
    if len(factors) != 1 or found.biases or found.hidden or found.softcap or found.in_windows:
        return False
    found.factors += factors
    return _name(step) == "mul" and example(factors[0]).shape[-2:] == (1, 1)
