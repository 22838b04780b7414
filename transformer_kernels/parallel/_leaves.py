# SPDX-License-Identifier: MIT
"""The parameters that operations of a recorded run read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from ..fuse.record import Node, Trace

Name = tuple[str, str]  # of a parameter: its module's path, and its own name


def _tensors_held(result: Any) -> Iterator[Tensor]:
    """Yields the tensors of what a model returns, also of objects that have them as attributes."""
    left, seen = [result], {}
    while left:
        x = left.pop()
        if id(x) in seen or isinstance(x, (type, ModuleType, nn.Module)):
            continue
        seen[id(x)] = x
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, Mapping):
            left += x.values()
        elif isinstance(x, (tuple, list)):
            left += x
        elif is_dataclass(x):
            left += (getattr(x, field.name, None) for field in fields(x))
        else:
            left += getattr(x, "__dict__", {}).values()


class Leaves:
    """Which values are computed of parameters and buffers alone, and of which ones; ``returned``
    are those of the model's result."""

    def __init__(self, model: nn.Module, trace: Trace) -> None:
        self._trace = trace
        self.returned = {trace.number(x) for x in _tensors_held(trace.result)}
        self._owners: dict[int, list[Name]] = {}
        for path, module in model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._owners.setdefault(trace.number(parameter), []).append((path, name))
        self._varying = {*trace.calls[0].ins}
        for node in trace.nodes:
            if not self._varying.isdisjoint(node.ins):
                self._varying.update(node.outs)

    def is_constant(self, value: int) -> bool:
        """Whether the value does not depend on what the model is given."""
        return value not in self._varying

    def owners(self, parameter: int) -> list[Name]:
        """The names of the parameter with this value; none of other values."""
        return self._owners.get(parameter, [])

    def parameters(self, nodes: Iterable[Node]) -> dict[int, None]:
        """The parameters that operations read, also through casts and sums of parameters alone."""
        values = (value for node in nodes for value in node.ins)
        return dict.fromkeys(v for v in self._leaves(values) if v in self._owners)

    def readers(self, value: int) -> Iterator[Node]:
        """The operations on what the model is given that read a parameter."""
        for node in self._trace.users.get(value, ()):
            if any(map(self.is_constant, node.outs)):
                for out in node.outs:
                    yield from self.readers(out)
            else:
                yield node

    def _leaves(self, values: Iterable[int]) -> Iterator[int]:
        for value in filter(self.is_constant, values):
            node = self._trace.maker.get(value)
            if node is None:
                yield value
            else:
                yield from self._leaves(node.ins)
