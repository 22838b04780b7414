# SPDX-License-Identifier: MIT
"""Finds what tensor parallelism can split in a recorded run of a model.

Linear layers whose results meet in one other linear layer, and go nowhere else, are split by
columns, and that one by rows: each rank computes some heads of an attention, or some channels of an
MLP, and the results of the ranks are summed once. What stands between must compute each head, or
each channel, for itself; embeddings whose columns are scores of heads are split with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..fuse.patterns._products import is_linear, weight_and_bias
from ..fuse.record import MOVES, Call, Node, Trace
from ._leaves import Leaves, Name
from .embeddings import Read, Tables, of_vocabulary

_ATTEND = frozenset(("scaled_dot_product_attention", "softmax"))
# Operations on each element, or on heads, whose dimension they leave alone.
_LOCAL = MOVES | _ATTEND | frozenset((
    "add", "baddbmm", "bmm", "cat", "clone", "div", "dropout", "elu", "erf", "exp", "gelu",
    "hardswish", "leaky_relu", "masked_fill", "matmul", "mul", "neg", "pow", "relu",
    "repeat_interleave", "rsqrt", "sigmoid", "silu", "softplus", "sub", "swapaxes", "tanh",
    "truediv", "where",
))  # fmt: skip
_OVER_LAST = frozenset(("layer_norm", "mean", "rms_norm", "var"))  # heads may be normalised alone
_SPLITS = frozenset(("chunk", "split", "tensor_split", "unbind"))
# Attributes of modules that count heads, or channels of all heads.
_COUNTS = re.compile(r"heads?$|parts$")
_WIDTHS = re.compile(r"split|embed_dim|all_head_size|hidden|inner|intermediate|width")


@dataclass(frozen=True)
class Group:
    """Linear layers that are split together.

    Attributes:
        columns: paths of the layers that are split by columns, in the order of their calls, with
            the sizes of the parts that each one's result is made of.
        row: the path of the layer that is split by rows.
        unit: columns that stay together, those of a head; a part is a multiple of it.
        inside: (path, name) of parameters that are read between them.
        counts: attributes (path, name) that count what is split, of modules between them.
        tables: paths of embeddings whose columns are heads, and are split with them.
    """

    columns: tuple[tuple[str, tuple[int, ...]], ...]
    row: str
    unit: int
    inside: tuple[Name, ...]
    counts: tuple[tuple[str, str], ...]
    tables: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "heads" if self.unit > 1 else "channels"

    @property
    def heads(self) -> int:
        """The heads of queries; 0 where channels are split."""
        return max(count for _, count in self.pieces()) if self.unit > 1 else 0

    @property
    def paths(self) -> list[str]:
        return [*(path for path, _ in self.columns), self.row]

    def pieces(self) -> Iterator[tuple[str, int]]:
        """How many heads or channels each part of each layer has."""
        for path, parts in self.columns:
            for size in parts:
                yield path, size // self.unit


@dataclass(frozen=True)
class Border:
    """Where tokens are gathered, or each rank takes its own.

    Attributes:
        path: the module.
        arguments: the positions or names of those that are the tensor; none for its result.
        gathers: whether all tokens are gathered.
        group: the index of the group whose layers read what is gathered; None for others.
        forks: whether random numbers of each rank's own begin here; at the end of a part, end.
    """

    path: str
    arguments: tuple[int | str, ...]
    gathers: bool
    group: int | None = None
    forks: bool = False


@dataclass(frozen=True)
class Between:
    """The parts of a model that are split over the tokens.

    Attributes:
        borders: where they begin and end, in the order of a run.
        rows: paths of layers split by rows whose results are summed and split.
        forked: the indices of groups before whose layers random numbers of a rank's own began.
        parameters: (path, name) of those in between, whose gradients are sums over the ranks.
        obstacle: where nothing is split, an operation that reads all tokens and before which no
            module begins, as words; "" where there is none.
    """

    borders: tuple[Border, ...] = ()
    rows: tuple[str, ...] = ()
    forked: tuple[int, ...] = ()
    parameters: tuple[Name, ...] = ()
    obstacle: str = ""


@dataclass(frozen=True)
class Found:
    """The parts of a model that can be split: groups, the head, and embeddings of its size; and
    what is between the groups, where that is to be split over the tokens."""

    groups: tuple[Group, ...]
    head: str | None
    embeddings: tuple[str, ...]
    between: Between = Between()

    def paths(self) -> Iterator[str]:
        """The paths of all modules whose parameters are split, or summed over the ranks."""
        for group in self.groups:
            yield from (*group.paths, *(path for path, _ in group.inside), *group.tables)
        yield from self.embeddings
        if self.head is not None:
            yield self.head


def find(model: nn.Module, trace: Trace) -> Found:
    """Finds groups, the head and the embedding of a recorded run."""
    flow = _Flow(model, trace)
    between: dict[Group, list[Node]] = {}  # a layer that is called twice is in one group
    for call in flow.linears:
        found = flow.group(call)
        if found is not None:
            between.setdefault(found[0], []).extend(found[1])
    groups = flow.with_tables(between)
    taken = {path for group in groups for path in group.paths}
    last = flow.linears[-1] if flow.linears else None
    head = last.path if last is not None and last.path not in taken else None
    if head is None:
        return Found(groups, None, ())
    words = weight_and_bias(model.get_submodule(head))[0].shape[0]
    return Found(groups, head, tuple(of_vocabulary(model, trace, words)))


def is_split_alike(module: Any) -> bool:
    """Whether the module computes with its weight what a plan can split."""
    return is_linear(module) or isinstance(module, nn.Embedding)


class _Flow:
    """The dataflow between the linear layers of a run."""

    def __init__(self, model: nn.Module, trace: Trace) -> None:
        self._model = model
        self._trace = trace
        self._leaves = Leaves(model, trace)
        self.linears = [call for call in trace.calls if is_linear(call.module)]
        self._owner = {i: call for call in self.linears for i in range(call.first, call.last)}
        self._tables = Tables(trace, self._leaves, self._owner)

    def with_tables(self, between: dict[Group, list[Node]]) -> tuple[Group, ...]:
        """The groups of which a rank can have all that they read, with the tables that they read
        by heads. ``between`` has their operations."""
        while True:
            heads = {node.index: g.heads for g, nodes in between.items() for node in nodes}
            read = self._tables.read(heads)
            counting = {path for g in between for path, _ in g.counts}
            kept = {
                g: nodes for g, nodes in between.items() if self._has_all(g, nodes, read, counting)
            }
            if len(kept) == len(between):
                return tuple(self._with(g, nodes, read) for g, nodes in kept.items())
            between = kept

    def _has_all(
        self, group: Group, nodes: list[Node], read: dict[Read, list[str]], counting: set[str]
    ) -> bool:
        """Whether all that enters between the layers is a table of heads, made by modules that
        count them, or what all heads or channels share."""
        made = {value for node in nodes for value in node.outs}
        made.update(value for call in self.linears for value in call.outs)
        for node in nodes:
            for value in {*node.ins} - made:
                sources = self._tables.sources(value)
                tables = self._tables.weights(read.get((node.index, value), ()))
                if tables and sources <= tables:
                    continue
                learns = any(map(self._leaves.owners, sources))
                if learns and not self._leaves.is_constant(value):
                    return False
                if self._is_of_one(group, node, value) and (
                    sources or not self._is_made_by(counting, group, value)
                ):
                    return False
        return True

    def _is_made_by(self, counting: set[str], group: Group, value: int) -> bool:
        """Whether modules at these paths, which know how many heads a rank has, make the value."""
        counts, left = {n for _, n in group.pieces()}, [value]
        while left:
            node = self._trace.maker.get(left.pop())
            if node is not None:
                if not node.ins and node.path not in counting:
                    return False
                left += (v for v in node.ins if not counts.isdisjoint(self._trace.values[v].shape))
        return True

    def _is_of_one(self, group: Group, node: Node, value: int) -> bool:
        """Whether each head or channel has numbers of its own in what the operation reads."""
        shape, result = (self._trace.values[v].shape for v in (value, node.outs[0]))
        widths = {n for _, sizes in group.columns for n in (*sizes, sum(sizes)) if n > group.unit}
        if (not group.heads or len(result) < 4) and not widths.isdisjoint(shape[-1:]):
            return True
        counts = {n for _, n in group.pieces() if n > 1} if group.heads else set()
        others = shape[:-1]
        if len(result) == 4:  # (B, H, T, .) or (B, T, H, D)
            others = shape[-3:-2] if result[1] in counts else shape[-2:-1]
        return not counts.isdisjoint(others)

    def _with(self, group: Group, nodes: list[Node], read: dict[Read, list[str]]) -> Group:
        reads = ((node.index, value) for node in nodes for value in node.ins)
        tables = tuple(dict.fromkeys(path for pair in reads for path in read.get(pair, ())))
        inside = tuple(name for name in group.inside if name[0] not in tables)
        return replace(group, inside=inside, tables=tables)

    def group(self, row: Call) -> tuple[Group, list[Node]] | None:
        """The group that this layer ends, and the operations between its layers; None where there
        is none."""
        columns = self._before(row)
        between: dict[int, Node] = {}
        for call in columns:
            reached = self._behind(call, between)
            if reached != [row]:
                return None
        nodes = [between[i] for i in sorted(between)]
        widths = [weight_and_bias(call.module)[0].shape[0] for call in columns]
        if not columns or not all(self._is_local(node, {*widths}) for node in nodes):
            return None
        inputs = weight_and_bias(row.module)[0].shape[1]
        heads = self._heads(nodes)
        unit = inputs // heads if heads else 1
        parts = [self._parts(call, width) for call, width in zip(columns, widths, strict=True)]
        if any(size % unit or size > inputs for sizes in parts for size in sizes):
            return None
        split = tuple((call.path, sizes) for call, sizes in zip(columns, parts, strict=True))
        paths = dict.fromkeys(node.path for node in nodes)
        counts = tuple(self._counts(paths, heads, parts, unit))
        return Group(split, row.path, unit, tuple(self._read_by(nodes)), counts), nodes

    def _before(self, row: Call) -> list[Call]:
        """The layers whose results reach the input of this one, through no other layer."""
        found: dict[int, Call] = {}
        left, seen = [row.ins[0]], set()
        while left:
            node = self._trace.maker.get(left.pop())
            if node is None or node.index in seen:
                continue
            seen.add(node.index)
            call = self._owner.get(node.index)
            if call is None:
                left.extend(node.ins)
            else:
                found[call.first] = call
        return [found[first] for first in sorted(found)]

    def _behind(self, call: Call, between: dict[int, Node]) -> list[Call]:
        """The layers that the result of this one reaches; the operations on the way are added to
        ``between``."""
        reached: dict[int, Call] = {}
        left, seen = list(call.outs), set()
        while left:
            for node in self._trace.users.get(left.pop(), ()):
                other = self._owner.get(node.index)
                if other is not None:
                    reached[other.first] = other
                elif node.index not in seen:
                    seen.add(node.index)
                    between[node.index] = node
                    left.extend(node.outs)
        return [reached[first] for first in sorted(reached)]

    def _is_local(self, node: Node, widths: set[int]) -> bool:
        """Whether the operation computes each head or channel for itself."""
        shape = self._trace.values[node.ins[0]].shape
        if node.name in _OVER_LAST:
            return shape[-1] not in widths
        return node.name in _LOCAL and (node.name != "softmax" or len(shape) > 3)

    def _heads(self, nodes: Iterable[Node]) -> int:
        """The heads of an attention's queries; 0 where there is none."""
        found = (node for node in nodes if node.name in _ATTEND)
        first = next(found, None)
        return self._trace.values[first.ins[0]].shape[1] if first else 0

    def _parts(self, call: Call, width: int) -> tuple[int, ...]:
        """The sizes of the parts, such as queries, keys and values, that a packed result is cut
        into by the operations that follow; one part where they cut each head alike."""
        value = call.outs[0]
        columns = torch.arange(width).expand(self._trace.values[value].shape)
        while len(users := self._trace.users.get(value, [])) == 1 and users[0].name in MOVES:
            node = users[0]
            moved: Any = getattr(torch.Tensor, node.name)(columns, *node.args[1:], **node.kwargs)
            if node.name in _SPLITS:
                ends = [(int(x.min()), int(x.max()) + 1) for x in moved]
                sizes = [end - first for first, end in ends]
                follows = [first for first, _ in ends] == [sum(sizes[:i]) for i in range(len(ends))]
                return tuple(sizes) if follows else (width,)
            value, columns = node.outs[0], moved
        return (width,)

    def _read_by(self, nodes: list[Node]) -> Iterator[Name]:
        for parameter in self._leaves.parameters(nodes):
            yield from self._leaves.owners(parameter)

    def _counts(
        self, paths: Iterable[str], heads: int, parts: list[tuple[int, ...]], unit: int
    ) -> Iterator[tuple[str, str]]:
        widths = {size for sizes in parts for size in sizes}
        counts = {heads, *(size // unit for size in widths)} if heads else set()
        for path in paths:
            for name, value in vars(self._model.get_submodule(path)).items():
                values = value if isinstance(value, tuple) else (value,)
                if not values or not all(type(number) is int for number in values):
                    continue
                known = counts if _COUNTS.search(name) else widths if _WIDTHS.search(name) else ()
                if all(number in known for number in values):
                    yield path, name
