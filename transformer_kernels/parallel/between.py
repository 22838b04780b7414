# SPDX-License-Identifier: MIT
"""Finds what sequence parallelism can split: the norms, sums and dropouts between the groups of
layers that tensor parallelism splits, which see each token alone.

A value between groups is split over its tokens where the operations that read it allow that. Where
they do not, it crosses a border: the argument or the result of a module, where tokens are gathered,
or taken apart. Hooks of modules can do that there, and nowhere else; an operation behind which no
border lies stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..fuse.patterns._products import is_linear
from ..fuse.record import Call, Node, Trace, tensors_in
from ._leaves import Leaves, Name
from .plan import Between, Border, Group

_Names = tuple[int | str, ...]  # of arguments
# Operations on each element, casts, and those over the last dimension.
_EACH = frozenset((
    "add", "clone", "contiguous", "detach", "div", "dropout", "elu", "erf", "exp", "float", "gelu",
    "half", "leaky_relu", "mul", "neg", "pow", "relu", "rsqrt", "sigmoid", "silu", "softplus",
    "sqrt", "sub", "tanh", "to", "truediv", "type", "type_as",
))  # fmt: skip
_OVER_LAST = frozenset(("layer_norm", "mean", "rms_norm", "var"))


def find_between(model: nn.Module, trace: Trace, groups: tuple[Group, ...]) -> Between:
    """Finds what can be split between these groups."""
    return _Search(trace, Leaves(model, trace), groups).found()


class _Barred(Exception):  # noqa: N818
    """Raised where operations turn out to need whole values."""

    def __init__(self, nodes: Iterable[int]) -> None:
        super().__init__()
        self.nodes = {*nodes}


class _Wanted(Exception):  # noqa: N818
    """Raised where an operation has to be split, because its result cannot be taken apart."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self.node = node


@dataclass(frozen=True)
class _Crossing:
    """A border of one call, and when it is crossed."""

    index: int
    call: Call
    border: Border


class _Search:
    def __init__(self, trace: Trace, leaves: Leaves, groups: tuple[Group, ...]) -> None:
        self._trace, self._groups = trace, groups
        self._end = len(trace.nodes)  # where what the model returns is read
        self._returned = leaves.returned
        linears = [call for call in trace.calls if is_linear(call.module)]
        self._linear = {i: call for call in linears for i in range(call.first, call.last)}
        columns = {path: g for g, group in enumerate(groups) for path, _ in group.columns}
        rows = {group.row for group in groups}
        self._columns = {
            i: columns[call.path] for i, call in self._linear.items() if call.path in columns
        }
        self._rows = [call for call in linears if call.path in rows]
        self._leaves = leaves
        self._into: dict[int, list[tuple[Call, _Names]]] = {}
        self._out_of: dict[int, list[Call]] = {}
        for call in trace.calls:
            for value, names in _arguments(call).items():
                self._into.setdefault(value, []).append((call, names))
            if len(call.outs) == 1:
                self._out_of.setdefault(call.outs[0], []).append(call)
        # Operations that see each token alone, with their operands that have tokens.
        self._alone = [
            (node, [value for value in node.ins if self._has_tokens(value, node)])
            for node in trace.nodes
            if self._sees_tokens_alone(node)
        ]
        self._can_be_split = {node.index for node, _ in self._alone}
        self._barred: set[int] = set()
        self._wanted: set[int] = set()
        self._split: set[int] = set()  # values that are split where they are made
        self._entering: dict[int, None] = {}  # values that are made whole and read split
        self._obstacle = ""

    def found(self) -> Between:
        while True:
            self._spread()
            if not self._split:
                return Between(obstacle=self._obstacle)
            try:
                crossings = self._crossings()
                parameters = self._parameters()
                self._check_alike(crossings)
            except _Barred as stop:
                self._barred |= stop.nodes
                continue
            except _Wanted as more:
                self._wanted.add(more.node)
                continue
            rows = dict.fromkeys(call.path for call in self._rows if call.outs[0] in self._split)
            borders, forked = self._forked(crossings)
            return Between(borders, tuple(rows), forked, parameters)

    # ---- what is split --------------------------------------------------------------------------

    def _spread(self) -> None:
        """Follows the results of groups, and what is added to them, through all operations that
        see each token alone."""
        self._split = {call.outs[0] for call in self._rows if call.first not in self._barred}
        self._split = {value for value in self._split if self._length(value) > 1}
        self._entering = {}
        grows = True
        while grows:
            grows = False
            for node, tokens in self._alone:
                if node.index in self._barred or self._reads_split(node):
                    continue
                is_reached = any(v in self._split or v in self._entering for v in tokens)
                if is_reached or node.index in self._wanted:
                    self._entering.update((v, None) for v in tokens if v not in self._split)
                    self._split.update(node.outs)
                    grows = True
        self._entering = {v: None for v in self._entering if v not in self._split}

    def _reads_split(self, node: Node) -> bool:
        return node.index not in self._linear and bool(node.outs) and node.outs[0] in self._split

    def _length(self, value: int) -> int:
        """The tokens of a value; 0 where it has none."""
        shape = self._trace.values[value].shape
        return shape[-2] if len(shape) > 1 else 0

    def _has_tokens(self, value: int, node: Node) -> bool:
        return self._length(value) == self._length(node.outs[0])

    def _sees_tokens_alone(self, node: Node) -> bool:
        """Whether the operation computes each token for itself, of parameters and other tokens."""
        if node.index in self._linear or not node.ins:
            return False
        if len(node.outs) != 1 or self._length(node.outs[0]) < 2:
            return False
        if node.name not in _EACH and not (node.name in _OVER_LAST and self._over_last(node)):
            return False
        return all(self._has_tokens(v, node) or self._leaves.is_constant(v) for v in node.ins)

    def _over_last(self, node: Node) -> bool:
        size = node.kwargs.get("normalized_shape", node.args[1] if len(node.args) > 1 else ())
        x, y = (self._trace.values[values[0]].shape for values in (node.ins, node.outs))
        return x[:-1] == y[:-1] and (not isinstance(size, (tuple, list)) or len(size) < 2)

    # ---- borders --------------------------------------------------------------------------------

    def _uses(self, value: int) -> dict[int, str | int]:
        """The operations that read a value, by their indices: ``"split"``, ``"whole"``, or the
        index of the group that has the layer."""
        found: dict[int, str | int] = {}
        for node in self._trace.users.get(value, ()):
            group = self._columns.get(node.index)
            whole = "whole" if group is None else group
            found[node.index] = "split" if self._reads_split(node) else whole
        if value in self._returned:
            found[self._end] = "whole"
        return found

    def _crossings(self) -> list[_Crossing]:
        found: list[_Crossing] = []
        for value in self._entering:
            found += self._into_parts(value)
        for value in self._split:
            made, uses = self._trace.maker[value].index, self._uses(value)
            if "split" not in uses.values() and made in self._linear:  # it would be gathered again
                raise _Barred({self._linear[made].first})
            found += self._out_of_parts(value, made, uses)
        return sorted(dict.fromkeys(found), key=lambda c: (c.index, c.border.gathers))

    def _into_parts(self, value: int) -> Iterator[_Crossing]:
        """Takes apart what is whole, as late as possible: code before may ask for its length."""
        uses = self._uses(value)
        split = {i for i, use in uses.items() if use == "split"}
        fits = [
            (call, names)
            for call, names in self._into.get(value, ())
            if all(use != "whole" for use in _inside(call, uses).values())
        ]
        whole = [pair for pair in fits if split <= {*_inside(pair[0], uses)}]
        for call, names in whole[-1:] or _outermost(fits):
            seen = _inside(call, uses)
            if split & {*seen}:
                yield _Crossing(call.first, call, Border(call.path, names, gathers=False))
                yield from self._out_of_parts(value, call.first - 1, seen)
                split -= {*seen}
        if split:
            yield from self._out_of_whole(value, split, uses)

    def _out_of_whole(
        self, value: int, split: set[int], uses: dict[int, str | int]
    ) -> Iterator[_Crossing]:
        """Takes apart the result of a module that nothing reads whole."""
        made = self._trace.maker.get(value)
        calls = [
            call
            for call in self._out_of.get(value, ())
            if made is not None and call.first <= made.index < call.last
        ]
        if not calls or "whole" in uses.values() or _inside(calls[-1], uses):
            if made is not None and made.index in self._can_be_split - self._barred:
                raise _Wanted(made.index)
            raise _Barred(split)
        call = calls[-1]
        yield _Crossing(call.last, call, Border(call.path, (), gathers=False))
        yield from self._out_of_parts(value, call.last - 1, uses)

    def _out_of_parts(
        self, value: int, made: int, uses: dict[int, str | int]
    ) -> Iterator[_Crossing]:
        """Gathers what is split: behind the module that made it, where all that follows reads it
        whole, or before those that do."""
        whole = {i for i, use in uses.items() if use == "whole"}
        if whole:
            for call in reversed(self._out_of.get(value, ())):
                inside = _inside(call, uses)
                behind = {use for i, use in uses.items() if i not in inside}
                if call.first <= made < call.last and "split" not in behind and not (
                    whole & {*inside}
                ):  # fmt: skip
                    yield _Crossing(call.last, call, Border(call.path, (), gathers=True))
                    uses, whole = inside, set()
                    break
        yield from self._before(value, made, whole, uses, None)
        groups = {use for use in uses.values() if isinstance(use, int)}
        for group in sorted(groups):
            own = {i for i, use in uses.items() if use == group}
            yield from self._before(value, made, own, uses, group)

    def _before(
        self, value: int, made: int, own: set[int], uses: dict[int, str | int], group: int | None
    ) -> Iterator[_Crossing]:
        """Gathers a value before the outermost modules in which only ``own`` operations read it."""
        fits = [
            (call, names)
            for call, names in self._into.get(value, ())
            if call.first > made and {*_inside(call, uses)} <= own
        ]
        for call, names in _outermost(fits):
            inside = {*_inside(call, uses)}
            if inside:
                border = Border(call.path, names, gathers=True, group=group)
                yield _Crossing(call.first, call, border)
                own = own - inside
        if own:
            self._obstacle = self._obstacle or self._words_of(min(own))
            raise _Barred({self._index_of_maker(value, made)})

    def _words_of(self, reader: int) -> str:
        if reader == self._end:
            return "what the model returns"
        node = self._trace.nodes[reader]
        return f"{node.name} in {node.path or 'the model'}"

    def _index_of_maker(self, value: int, made: int) -> int:
        """Finds the operation that has to stay whole, so that the value is."""
        if value in self._entering:
            return min(i for i, use in self._uses(value).items() if use == "split")
        call = self._linear.get(made)
        return made if call is None else call.first

    # ---- what belongs to it ---------------------------------------------------------------------

    def _parameters(self) -> tuple[Name, ...]:
        """The parameters that are read in between, and nowhere else."""
        found: list[Name] = []
        nodes = [node for node in self._trace.nodes if self._reads_split(node)]
        for value in self._leaves.parameters(nodes):
            owners, readers = self._leaves.owners(value), [*self._leaves.readers(value)]
            if len(owners) > 1 or not all(map(self._reads_split, readers)):
                raise _Barred(node.index for node in readers if self._reads_split(node))
            found += owners
        return tuple(found)

    def _check_alike(self, crossings: list[_Crossing]) -> None:
        """Has every call of a module the same borders, and every result of a layer alike."""
        borders = {(id(c.call), c.border) for c in crossings}
        for crossing in crossings:
            for call in self._trace.calls:
                if call.path == crossing.call.path and (id(call), crossing.border) not in borders:
                    raise _Barred({c.first for c in self._rows})
        for call in self._rows:
            alike = {c.outs[0] in self._split for c in self._rows if c.path == call.path}
            if len(alike) > 1:
                raise _Barred({c.first for c in self._rows if c.path == call.path})

    def _forked(self, crossings: list[_Crossing]) -> tuple[tuple[Border, ...], tuple[int, ...]]:
        """Notes where random numbers of a rank's own begin and end: they serve all that is split,
        by tokens, heads or channels."""
        firsts = {group.columns[0][0]: g for g, group in enumerate(self._groups)}
        events: list[tuple[int, int, Any]] = [(c.index, 1, c.border) for c in crossings]
        events += [
            (call.first, 2, firsts[call.path]) for call in self._trace.calls if call.path in firsts
        ]
        events += [(call.first, 0, call) for call in self._rows]
        borders: dict[tuple[str, Any], Border] = {}
        forked: dict[int, None] = {}
        is_own = False
        for _, _, event in sorted(events, key=lambda e: e[:2]):
            if isinstance(event, Call):
                is_own = event.outs[0] in self._split
            elif isinstance(event, int):
                if is_own:
                    forked[event] = None
                is_own = True
            else:
                forks = event.group is None and event.gathers == is_own
                is_own = is_own != forks
                of = event.path, event.arguments
                forks = forks or (of in borders and borders[of].forks)
                borders[of] = Border(*of, event.gathers, event.group, forks)
        return tuple(borders.values()), tuple(forked)


def _arguments(call: Call) -> dict[int, _Names]:
    """The tensors that a module is given by position or by name: their values, and which arguments
    they are."""
    values = iter(call.ins)
    found: dict[int, _Names] = {}
    named: list[tuple[int | str, Any]] = [*enumerate(call.args), *call.kwargs.items()]
    for name, x in named:
        own = [next(values) for _ in tensors_in(x)]
        if isinstance(x, Tensor):
            found[own[0]] = (*found.get(own[0], ()), name)
    return found


def _inside(call: Call, uses: dict[int, str | int]) -> dict[int, str | int]:
    return {i: use for i, use in uses.items() if call.first <= i < call.last}


def _outermost(calls: list[tuple[Call, _Names]]) -> list[tuple[Call, _Names]]:
    """The calls that are in no other of these; calls are in the order in which they began."""
    found: list[tuple[Call, _Names]] = []
    for pair in calls:
        if not found or found[-1][0].last <= pair[0].first:
            found.append(pair)
    return found
