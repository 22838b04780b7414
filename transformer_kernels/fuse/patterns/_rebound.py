# SPDX-License-Identifier: MIT
"""Functions that a module's ``forward`` calls, replaced by giving its code other globals."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..derive import innermost, original, rebind
from ..mixin import Mixin
from ..record import Call, Trace

Replace = Callable[[Mapping[str, Any], tuple[str, ...]], dict[str, Any]]

# By pattern: makes the new meanings of names from the globals of a forward and the names in it.
_REPLACE: dict[str, Replace] = {}
_REPLICATE = "_replicate_for_data_parallel"
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


def rebound(kind: Any, patterns: tuple[str, ...]) -> Any:
    """The ``forward`` of a class with the names of these patterns. It is made once; torch.compile
    cannot make it."""
    made = _made.get((kind, patterns))
    if made is None:
        names = {k: v for pattern in patterns for k, v in names_of(kind, pattern).items()}
        made = _made[kind, patterns] = rebind(kind.forward, names)
    return made


def _rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor whose rows are counted: the first argument."""
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)


def features_of(call: Call, trace: Trace) -> int:
    """The features of a row of a call's first tensor; 0 where it has integers, or there is none."""
    x = trace.values[call.ins[0]] if call.ins else None
    return x.shape[-1] if x is not None and x.dtype.is_floating_point else 0


class Rebound(Mixin):
    """The class of a module whose forward runs with other globals: those of the patterns whose
    gates are open for the call."""

    _tfk_keeps_signature = True
    _tfk_rebound: type  # the class whose forward that is

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor):
            x = _rows(args, kwargs)
        if x is None:
            return super().forward(*args, **kwargs)
        gates = self._tfk_gates.items()
        patterns = tuple([name for name, gate in gates if name in _REPLACE and gate.opens(x)])
        if not patterns:
            return super().forward(*args, **kwargs)
        return rebound(self._tfk_rebound, patterns)(self, *args, **kwargs)


class _OfInstance:
    """A method of one module, whose class stays what it is. A deep copy of both is the copy's
    method, and so is a pickled one."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module


class _Forward(_OfInstance):
    """A ``forward`` that runs with the names that a pattern gives other meanings."""

    def __init__(self, module: nn.Module, pattern: str) -> None:
        super().__init__(module)
        self._pattern = pattern

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self._module).forward.__get__(self._module))

    @property
    def __code__(self) -> types.CodeType:  # torch.export asks a forward for it
        code: types.CodeType = innermost(type(self._module).forward).__code__
        return code

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, pattern = self._module, self._pattern
        x, gates = _rows(args, kwargs), vars(module).get("_tfk_gates", {})
        if x is None or pattern not in gates or not gates[pattern].opens(x):
            return type(module).forward(module, *args, **kwargs)
        return rebound(original(type(module)), (pattern,))(module, *args, **kwargs)


class _Replicate(_OfInstance):
    """Makes the replicas of DataParallel, which run the forward of their class: a method of this
    module would read its parameters instead of theirs."""

    def __call__(self) -> nn.Module:
        replica: nn.Module = type(self._module)._replicate_for_data_parallel(self._module)
        for name in ("forward", _REPLICATE):
            replica.__dict__.pop(name, None)
        return replica


def rebound_in_place(module: nn.Module, pattern: str) -> dict[str, Any]:
    """The attributes with which a module runs its forward as :class:`Rebound` does, and keeps its
    class."""
    return {"forward": _Forward(module, pattern), _REPLICATE: _Replicate(module)}
