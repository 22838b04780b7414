# SPDX-License-Identifier: MIT
"""Functions that a module's ``forward`` calls, replaced by giving its code other globals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..derive import innermost, rebind
from ..mixin import Mixin

Replace = Callable[[Mapping[str, Any], tuple[str, ...]], dict[str, Any]]

# By pattern: makes the new meanings of names from the globals of a forward and the names in it.
_REPLACE: dict[str, Replace] = {}
_made: dict[tuple[type, tuple[str, ...]], Any] = {}


def replaces(pattern: str, replace: Replace) -> None:
    """Declares the names that a pattern gives other meanings."""
    _REPLACE[pattern] = replace


def names_of(kind: Any, pattern: str) -> dict[str, Any]:
    """The names in the ``forward`` of a class that a pattern would give other meanings."""
    inner = innermost(kind.forward)
    if not hasattr(inner, "__code__"):
        return {}
    return _REPLACE[pattern](inner.__globals__, inner.__code__.co_names)


def _forward(kind: Any, patterns: tuple[str, ...]) -> Any:
    made = _made.get((kind, patterns))
    if made is None:
        names = {k: v for pattern in patterns for k, v in names_of(kind, pattern).items()}
        made = _made[kind, patterns] = rebind(kind.forward, names)
    return made


def _rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor whose rows are counted: the first argument."""
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)


class Rebound(Mixin):
    """The class of a module whose forward runs with other globals: those of the patterns whose
    gates are open for the call."""

    _tfk_keeps_signature = True
    _tfk_rebound: type  # the class whose forward that is

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args and isinstance(args[0], Tensor) else _rows(args, kwargs)
        if x is None:
            return super().forward(*args, **kwargs)
        gates = self._tfk_gates.items()
        patterns = tuple([name for name, gate in gates if gate.opens(x) and name in _REPLACE])
        if not patterns:
            return super().forward(*args, **kwargs)
        return _forward(self._tfk_rebound, patterns)(self, *args, **kwargs)
