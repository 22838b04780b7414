# SPDX-License-Identifier: MIT
"""Hooks at the borders of what is split over the tokens."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..fuse.record import with_items
from .plan import Border
from .randomness import Fork
from .styles import Entry, gathered, taken


class Crossing:
    """A border in a model that is split."""

    def __init__(
        self, border: Border, mesh: DeviceMesh, entries: Sequence[Entry], fork: Fork | None
    ) -> None:
        self._border, self._mesh = border, mesh
        self._entry = None if border.group is None else entries[border.group]
        self._fork = fork if border.forks else None

    def attach_before(self, model: nn.Module) -> None:
        if self._border.arguments:
            module = model.get_submodule(self._border.path)
            module.register_forward_pre_hook(self._before, with_kwargs=True)

    def attach_behind(self, model: nn.Module) -> None:
        if not self._border.arguments:
            model.get_submodule(self._border.path).register_forward_hook(self._behind)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: dict[int | str, Any] = dict(enumerate(args))
        given.update(kwargs)
        names = self._border.arguments
        given.update(dict.fromkeys(names, self._crossed(module, given[names[0]])))
        return tuple(given[i] for i in range(len(args))), {name: given[name] for name in kwargs}

    def _behind(self, module: nn.Module, args: Any, result: Any) -> Any:
        """The result has one tensor, as it is or in tuples, lists and mappings."""
        if isinstance(result, Tensor):
            return self._crossed(module, result)
        if isinstance(result, (tuple, list)):
            return with_items(result, (self._behind(module, args, x) for x in result))
        if not isinstance(result, Mapping):
            return result
        found = {name: self._behind(module, args, x) for name, x in result.items()}
        if not isinstance(result, MutableMapping):
            return type(result)(found)  # type: ignore[call-arg]
        for name, x in found.items():
            result[name] = x
        return result

    def _crossed(self, module: nn.Module, x: Tensor) -> Tensor:
        if not self._border.gathers:
            if self._fork is not None:
                self._fork.begin(module.training)
            return taken(x, self._mesh)
        if self._entry is not None:
            return self._entry.gather(x, self._mesh)
        if self._fork is not None:
            self._fork.end()
        return gathered(x, self._mesh)
