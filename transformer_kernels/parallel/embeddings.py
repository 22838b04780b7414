# SPDX-License-Identifier: MIT
"""Finds the embeddings of a recorded run that can be split: those of a vocabulary by its words, and
those whose columns are scores of heads, as relative positions have them, by heads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..fuse.derive import original
from ..fuse.record import MOVES, Call, Node, Trace
from ._leaves import Leaves

# Operations on each element, which align dimensions from the last one.
_EACH = frozenset(("add", "div", "masked_fill", "mul", "sub", "truediv", "where"))
_CASTS = frozenset(("contiguous", "detach", "float", "half", "to", "type", "type_as"))
_SCALES = MOVES | {"div", "mul", "truediv"}
_HEADS = -3  # the dimension of scores (B, H, Tq, Tk)

Read = tuple[int, int]  # an operation's index, and the value that it reads


def of_vocabulary(model: nn.Module, trace: Trace, words: int) -> Iterator[str]:
    """The embedding of so many words that is looked up first, and others with its table."""
    calls: Iterator[Any] = (call.module for call in trace.calls if _looks_up(trace, call))
    first = [module for module in calls if module.num_embeddings == words][:1]
    kinds = {nn.Embedding, *(original(type(module)) for module in first)}
    for path, module in model.named_modules():
        is_alike = original(type(module)) in kinds
        if is_alike and any(module.weight is known.weight for known in first):
            yield path


def _looks_up(trace: Trace, call: Call) -> bool:
    """Whether the module gives rows of its weight, at most scaled."""
    module, nodes = call.module, trace.inside(call)
    if not isinstance(module, nn.Embedding) or not nodes or nodes[0].name != "embedding":
        return False
    made = {*nodes[0].outs}
    for node in nodes[1:]:
        others = [value for value in node.ins if value not in made]
        if node.name not in _SCALES or any(trace.values[value].shape for value in others):
            return False
        made.update(node.outs)
    return nodes[0].ins[1] == trace.number(module.weight)


class Tables:
    """Embeddings whose columns are heads of attentions, and what else values are made of.

    Args:
        linear: the operations of linear layers, by their indices.
    """

    def __init__(self, trace: Trace, leaves: Leaves, linear: Collection[int]) -> None:
        self._trace = trace
        self._returned = leaves.returned
        self._calls: dict[str, list[Call]] = {}
        for call in trace.calls:
            if original(type(call.module)) is nn.Embedding:
                self._calls.setdefault(call.path, []).append(call)
        self._sources: dict[int, frozenset[int]] = dict.fromkeys(trace.calls[0].ins, frozenset())
        for node in trace.nodes:
            known = (self.sources(value) for value in node.ins if node.index not in linear)
            self._sources.update(dict.fromkeys(node.outs, frozenset[int]().union(*known)))

    def sources(self, value: int) -> frozenset[int]:
        """The parameters, buffers and tensors of unknown origin that a value is computed of, behind
        the last linear layers."""
        return self._sources.get(value, frozenset((value,)))

    def weights(self, paths: Iterable[str]) -> set[int]:
        """The values of the weights of embeddings."""
        modules: Iterator[Any] = (self._calls[path][0].module for path in paths)
        return {self._trace.number(module.weight) for module in modules}

    def read(self, heads: Mapping[int, int]) -> dict[Read, list[str]]:
        """The embeddings that nothing reads but the scores of attentions, head by head: their
        paths, by the operations that read them.

        Args:
            heads: how many heads operations between the layers of a group have, by their indices.
        """
        found: dict[Read, list[str]] = {}
        for path, calls in self._calls.items():
            inside = {node.index for call in calls for node in self._trace.inside(call)}
            (weight,) = self.weights([path])
            own = [self._read_of(call, heads) for call in calls]
            if all(own) and all(node.index in inside for node in self._trace.users[weight]):
                for read in set[Read]().union(*own):
                    found.setdefault(read, []).append(path)
        return found

    def _read_of(self, call: Call, heads: Mapping[int, int]) -> set[Read]:
        """The operations that read columns of this call as heads; none where others read them."""
        found: set[Read] = set()
        left = [(call.outs[0], len(self._shape(call.outs[0])) - 1)]
        while left:
            value, dim = left.pop()
            for node in self._trace.users.get(value, ()):
                if node.index in heads:
                    if not self._scores_heads(node, value, dim, heads[node.index]):
                        return set()
                    found.add((node.index, value))
                    continue
                moved = self._moved(node, value, dim)
                if moved is None:
                    return set()
                left.append((node.outs[0], moved))
            if value in self._returned:
                return set()
        return found

    def _scores_heads(self, node: Node, value: int, dim: int, heads: int) -> bool:
        """Whether the operation adds to scores (B, H, Tq, Tk), or masks them, by the dimension."""
        is_attention = node.name == "scaled_dot_product_attention" and value not in node.ins[:3]
        shape = self._shape(node.outs[0])
        is_head = dim - len(self._shape(value)) == _HEADS and len(shape) == 4
        return is_head and shape[_HEADS] == heads and (is_attention or node.name in _EACH)

    def _moved(self, node: Node, value: int, dim: int) -> int | None:
        """Where the operation's result has the dimension; None where that is not known."""
        shape = self._shape(value)
        if node.name in _EACH | _CASTS:
            result = self._shape(node.outs[0])
            moved = dim - len(shape) + len(result)
            return moved if result[moved] == shape[dim] else None
        if node.name not in MOVES or len(node.ins) > 1 or node.args[:1] != (None,):
            return None
        # A tensor whose numbers lie apart in that dimension alone says where a view puts it.
        x = torch.empty(shape[dim], device="meta")
        x = x.as_strided(shape, [int(i == dim) for i in range(len(shape))])
        y = getattr(x, node.name)(*node.args[1:], **node.kwargs)
        if not isinstance(y, Tensor):
            return None
        apart = [i for i, step in enumerate(y.stride()) if step and y.shape[i] > 1]
        return apart[0] if [y.shape[i] for i in apart] == [shape[dim]] else None

    def _shape(self, value: int) -> tuple[int, ...]:
        return self._trace.values[value].shape
