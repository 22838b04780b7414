# SPDX-License-Identifier: MIT
"""Rewrites a graph, place by place, and says what was done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch.fx import GraphModule, Node

from ..site import Refusal, RefusedError
from .decide import decision
from .nodes import (
    IN_PLACE,
    example,
    inside_contexts,
    is_mutating,
    is_tensor,
    keeps_shape,
    name_of,
    where_of,
)
from .patterns import ALL, Pattern, Place
from .prove import why_not
from .region import Candidate, Region, may_drop, region_of

_CHECKPOINT = "tag_activation_checkpoint"
_MAKERS = frozenset(
    ("add", "bmm", "div", "linear", "matmul", "mul")
)  # whose result is a new tensor
_USED_ELSEWHERE = "an intermediate result is used elsewhere"


class Rewriting(NamedTuple):
    """A place where a graph calls one of our functions."""

    path: str  # of the module whose forward computed the result
    pattern: str
    function: str  # "functional.attention"
    replaced: int  # operations


@dataclass(eq=False)
class GraphPlan:
    """The places of a graph of torch.compile that were replaced, and those that were left."""

    nodes: int  # of the graph as it was
    trains: bool
    sites: list[Rewriting] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """The number of places of each pattern."""
        found: dict[str, int] = {}
        for site in self.sites:
            found[site.pattern] = found.get(site.pattern, 0) + 1
        return found

    def __str__(self) -> str:
        kind = "with gradients" if self.trains else "without gradients"
        lines = [f"graph of {self.nodes} operations, {kind}: {len(self.sites)} places rewritten"]
        for pattern, function in dict.fromkeys((s.pattern, s.function) for s in self.sites):
            alike = [s for s in self.sites if (s.pattern, s.function) == (pattern, function)]
            operations = sum(site.replaced for site in alike)
            lines.append(
                f"  {pattern}: {len(alike)} x {function} for {operations} operations"
                f" ({alike[0].path or 'the model'})"
            )
        for pattern, reason in dict.fromkeys((r.pattern, r.reason) for r in self.refusals):
            paths = [r.path for r in self.refusals if (r.pattern, r.reason) == (pattern, reason)]
            lines.append(
                f"  left: {pattern} at {paths[0] or 'the model'}"
                + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
                + f": {reason}"
            )
        return "\n".join(lines)

    __repr__ = __str__


class Rewriter:
    """Rewrites one graph.

    Args:
        module: the graph, whose nodes know their values' metadata, as dynamo's do.
        trains: whether gradients are computed.
        patterns: names of those to look for; None for all.
        decides: whether patterns that the table of decisions declines are left alone.
    """

    def __init__(
        self,
        module: GraphModule,
        trains: bool,
        patterns: Collection[str] | None = None,
        decides: bool = True,
    ) -> None:
        self._module = module
        self._graph = module.graph
        self._patterns = [p for p in ALL if patterns is None or p.name in patterns]
        self._decides = decides
        self._repeats = False  # whether the graph is computed again in the backward pass
        self.plan = GraphPlan(sum(map(_is_call, self._graph.nodes)), trains)

    def rewrite(self) -> GraphPlan:
        """Rewrites what can be, in place, and returns the plan."""
        self._foreign = inside_contexts(iter(self._graph.nodes))
        for pattern in self._patterns:
            for node in list(self._graph.nodes):
                if name_of(node) in pattern.anchors and not node._erased and is_tensor_like(node):
                    self._look(pattern, node)
        for body in self._checkpointed():
            self._rewrite_body(body)
        if self.plan.sites:
            self._module.recompile()
        return self.plan

    def _checkpointed(self) -> list[GraphModule]:
        """The graphs of regions that the backward pass computes again."""
        calls = (n for n in self._graph.nodes if getattr(n.target, "__name__", "") == _CHECKPOINT)
        found = (getattr(self._module, str(call.args[0].target), None) for call in calls)
        return [body for body in dict.fromkeys(found) if isinstance(body, GraphModule)]

    def _rewrite_body(self, body: GraphModule) -> None:
        inner = Rewriter(body, self.plan.trains)
        inner._patterns, inner._decides, inner._repeats = self._patterns, self._decides, True
        plan = inner.rewrite()
        self.plan.nodes += plan.nodes
        self.plan.sites += plan.sites
        self.plan.refusals += plan.refusals

    def _look(self, pattern: Pattern, node: Node) -> None:
        order = {n: i for i, n in enumerate(self._graph.nodes)}
        try:
            reason = self._tried(pattern, Place(node, order))
        except RefusedError as refused:
            reason = str(refused)
        except Exception as error:  # a spelling that a pattern does not know is no user's fault
            reason = f"it is written in a way that is not known ({type(error).__name__})"
            _erase([n for n in self._graph.nodes if n not in order])
        if reason is not None:
            self.plan.refusals.append(Refusal(where_of(node), pattern.name, reason))

    def _tried(self, pattern: Pattern, place: Place) -> str | None:
        """Tries the candidates of a place until one replaces it; or the reason why none does."""
        reason = None
        for candidate in pattern.candidates(place):
            declined = self._declined(candidate)
            if declined is not None:
                return declined
            reason = self._replaced(candidate, place.order)
            if reason is None:
                return None
        return reason

    def _declined(self, candidate: Candidate) -> str | None:
        if not self._decides:
            return None
        made = decision(example(candidate.outputs[0]).device.type, candidate.pattern)
        runs = made.training if self.plan.trains else made.inference
        return None if runs else made.reason

    def _replaced(self, candidate: Candidate, order: dict[Node, int]) -> str | None:
        """Replaces the candidate's region; or the reason why it stays."""
        region = region_of(candidate, order)
        if region is None:
            return "it is part of something larger"
        if region.leaks is not None:
            return _USED_ELSEWHERE
        if not self._foreign.isdisjoint(region.nodes):
            return "it runs under another autocast or without gradients"
        if any(map(_is_written, candidate.outputs)):
            return "its result is written in place"
        anchor = _anchor(candidate, region, order)
        if anchor is None:
            return "nothing reads its result"
        last = order[anchor]
        between = list(order)[order[region.nodes[0]] : last]
        if any(is_mutating(one) and not _writes_to_its_own(one) for one in between):
            return "memory is written in between"
        ours, results = self._emitted(candidate, anchor)
        if self._repeats and any(map(may_drop, ours)):
            _erase(ours)
            return "its dropout would be drawn again in a region of activation checkpointing"
        known = {*ours}
        ready = all(x in known or order[x] < last for node in ours for x in node.all_input_nodes)
        reason = (
            why_not(candidate, region, ours, results, self.plan.trains)
            if ready
            else "its operands are computed too late"
        )
        if reason is None:
            self._put(candidate, region, results)
        else:
            _erase(ours)
        return reason

    def _emitted(self, candidate: Candidate, anchor: Node) -> tuple[list[Node], Sequence[Node]]:
        """Writes our calls before the anchor."""
        before = anchor.prev
        with self._graph.inserting_before(anchor):
            results = candidate.emit(self._graph)
        ours, node = [], before.next
        while node is not anchor:
            ours.append(node)
            node = node.next
        return ours, results

    def _put(self, candidate: Candidate, region: Region, results: Sequence[Node]) -> None:
        path = where_of(candidate.outputs[0])
        count = len(region.nodes)
        for old, new in zip(candidate.outputs, results, strict=True):
            new.meta.update({k: v for k, v in old.meta.items() if k != "val"})
            old.replace_all_uses_with(new)
        _erase(region.nodes, also=region.nodes)
        self.plan.sites.append(Rewriting(path, candidate.pattern, candidate.function, count))


def _is_call(node: Node) -> bool:
    return node.op in ("call_function", "call_method")


def is_tensor_like(node: Node) -> bool:
    """Whether a node's value is a tensor, or a tuple that begins with one."""
    value = node.meta.get("example_value")
    return is_tensor(node) or isinstance(value, (tuple, list))


def _is_written(node: Node) -> bool:
    """Whether an operation writes to the node's memory."""
    return any(is_mutating(user) and user.args[:1] == (node,) for user in node.users)


def _writes_to_its_own(node: Node) -> bool:
    """Whether an operation writes to what another one has made for it alone, so that no other value
    changes."""
    target = node.args[0] if node.args and "out" not in node.kwargs else None
    return isinstance(target, Node) and len(target.users) == 1 and _is_fresh(target)


def _is_fresh(node: Node) -> bool:
    """Whether the node's value has memory of its own, which no other value has seen."""
    name = name_of(node)
    if name in IN_PLACE or keeps_shape(node):
        before = node.args[0]
        return isinstance(before, Node) and len(before.users) == 1 and _is_fresh(before)
    return name in _MAKERS and "out" not in node.kwargs


def _anchor(candidate: Candidate, region: Region, order: dict[Node, int]) -> Node | None:
    """The first operation that stays and reads a result."""
    going = {*region.nodes} - _kept(candidate, region)
    users = [u for node in candidate.outputs for u in node.users if u not in going]
    return min(users, key=order.__getitem__, default=None)


def _kept(candidate: Candidate, region: Region) -> set[Node]:
    """Moves of the region that others read, too."""
    inside, kept = {*region.nodes}, set[Node]()
    for node in reversed(region.nodes):
        is_read = not inside.issuperset(node.users) or not kept.isdisjoint(node.users)
        if is_read and node not in candidate.outputs:
            kept.add(node)
    return kept


def _erase(nodes: Sequence[Node], also: Collection[Node] = ()) -> None:
    """Takes out what nothing reads any more, and what was computed for that alone; operations that
    write to memory only where they are named in ``also``."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node._erased or node.users or not _is_call(node):
            continue
        if is_mutating(node) and node not in also:
            continue
        before = node.all_input_nodes
        node.graph.erase_node(node)
        waiting += before
