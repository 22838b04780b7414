# SPDX-License-Identifier: MIT
"""Derived classes for modules, and the same code with other globals.

A fused module keeps its parameters, hooks and attributes; only its class changes, to one derived
from the class it had, with the same names. Mixins call ``super().forward`` for what they do not
handle.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._cuda_graph import SERVING_FEW
from .._torch import is_bare
from .few import call_of

_is_compiling = torch.compiler.is_compiling

OWN = "_tfk_"  # begins the names of attributes that a fused module has in addition
_ORIGINAL = f"{OWN}original"  # of a derived class: the one before fusing


class _Derived(type):
    """The metaclass of derived classes, through which they are pickled as what they are made of.

    Classes that others derive from them, or give another ``forward``, are called as the class
    before fusing is."""

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> None:
        super().__init__(name, bases, space)
        if "__call__" not in space:
            cls.__call__ = _stock_call(cls)  # type: ignore[method-assign]

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "forward":
            cls.__call__ = _stock_call(cls)  # type: ignore[method-assign]


def _stock_call(kind: type) -> Callable[..., Any]:
    """``__call__`` as a class has it without the one of few rows."""
    spaces = (vars(k) for k in kind.__mro__ if not is_derived(k))
    found: Callable[..., Any] = next(s["__call__"] for s in spaces if "__call__" in s)
    return found


def _metaclass(base: type) -> type:
    """A metaclass that derives from the base's own one, too."""
    kind = type(base)
    if issubclass(kind, _Derived):
        return kind
    if kind is type:
        return _Derived
    made = type("_Derived", (_Derived, kind), {})
    copyreg.pickle(made, _reduce)
    return made


_classes: dict[tuple[type, type], type] = {}
_forwards: dict[type[nn.Module], Callable[..., Any]] = {}  # of the classes that fusing has seen


def derived(base: type, mixin: type) -> type:
    """The class of a module that was of class ``base``; the same for every module."""
    made = _classes.get((base, mixin))
    if made is None:
        names: dict[str, Any] = {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            f"{OWN}made_of": (base, mixin),
            _ORIGINAL: original(base),
            "__call__": call_of(original(base)),
        }
        if getattr(mixin, f"{OWN}keeps_signature", False):
            names["forward"] = _like(base, mixin)
        made = _metaclass(base)(base.__name__, (mixin, base), names)
        _classes[base, mixin] = made
        know(made)
    return made


def _like(base: Any, mixin: Any) -> Callable[..., Any]:
    """The mixin's ``forward``, with the signature of the base's, which libraries read. It is a copy
    of the function, because a function around it would take time at each call."""
    own = mixin.forward
    made = types.FunctionType(own.__code__, own.__globals__, "forward", None, own.__closure__)
    return functools.update_wrapper(made, base.forward)


def _reduce(made: type) -> tuple[Any, ...]:
    return derived, made.__dict__[f"{OWN}made_of"]


copyreg.pickle(_Derived, _reduce)


def is_derived(kind: type) -> bool:
    return f"{OWN}made_of" in kind.__dict__


def original(kind: type) -> type:
    """The class before fusing."""
    found: type = kind.__dict__.get(_ORIGINAL, kind)
    return found


def know(kind: type) -> None:
    """Notes the ``forward`` of a class, which is how another one put there later is noticed."""
    _forwards.setdefault(kind, kind.forward)  # type: ignore[attr-defined]


# ---- what is asked again at each call -----------------------------------------------------------


def stands(module: Any, kind: type | None = None) -> bool:
    """Whether calling the module runs code that fusing has seen and nothing else: no hook, adapter,
    parametrization, pruning, other ``forward`` or quantised weight. With ``kind``, also whether it
    was of that class before fusing."""
    if kind is not None and original(type(module)) is not kind:
        return False
    return is_bare(module, _forwards)


def meets(module: nn.Module, kind: type | None = None) -> bool:
    """Whether the module :func:`stands` when it is fused, and its class becomes known."""
    know(original(type(module)))
    return stands(module, kind)


class Link:
    """A reference to a module that does not make it a child. A deep copy of both refers to the
    copy."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module


class Gate(NamedTuple):
    """Which calls of a site run our code: those of at least so many rows, with or without
    gradients, and in graphs of torch.compile, whose own kernels serve most patterns as well.

    Each element of a tensor of integers counts as a row: a model of tokens takes their numbers."""

    rows: int = 1
    training: bool = True
    inference: bool = True
    compiled: bool = False

    def opens(self, x: Tensor) -> bool:
        if _is_compiling():
            return self.compiled
        rows = self.rows
        if rows > 1 and not SERVING_FEW:
            features = x.size(-1) if x.is_floating_point() else 1
            if x.numel() < rows * features:
                return False
        return self.training if torch.is_grad_enabled() else self.inference


OPEN = Gate()


# ---- the same code with other globals -----------------------------------------------------------

_ROOM = "transformer_kernels_rebound"
# By the name of a room: the globals that it is a copy of, which live on, since their number is in
# the name.
_scopes: dict[str, dict[str, Any]] = {}


def innermost(function: Any) -> Any:
    """The function below its decorators."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def rebind(function: Any, names: Mapping[str, Any]) -> Any:
    """``function``'s code, in which some global names mean something else.

    Decorators that hold the function in their closure are made anew around it.
    """
    function = getattr(function, "__func__", function)
    scope = function.__globals__
    here = {name: value for name, value in names.items() if name in scope}
    cells = function.__closure__
    inner = getattr(function, "__wrapped__", None)
    if cells and inner is not None:
        cells = tuple(
            types.CellType(rebind(inner, names)) if _holds(cell, inner) else cell for cell in cells
        )
    made = types.FunctionType(
        function.__code__, _room(scope, here) if here else scope, function.__name__,
        function.__defaults__, cells,
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__qualname__, made.__doc__ = function.__qualname__, function.__doc__
    if inner is not None:
        made.__wrapped__ = rebind(inner, names)  # type: ignore[attr-defined]
    return made


def _holds(cell: types.CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # an empty cell
        return False


def _room(scope: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The globals of a module of its own. It is one of ``sys.modules``, because torch.compile
    looks globals up by the name of their module. Modules of one name have different rooms: a file
    that is loaded again, or cells that were made by exec()."""
    marks = "_".join(f"{name}_{id(value):x}" for name, value in sorted(names.items()))
    name = f"{_ROOM}.{scope['__name__'].replace('.', '_')}_{id(scope):x}_{marks}"
    if name not in sys.modules:
        _scopes[name] = scope
        sys.modules.setdefault(_ROOM, types.ModuleType(_ROOM))
        made = types.ModuleType(name)
        made.__dict__.update(scope)
        made.__dict__.update(names)
        made.__dict__["__name__"] = name
        sys.modules[name] = made
    return sys.modules[name].__dict__


def shadow(module: types.ModuleType, **names: Any) -> types.ModuleType:
    """A copy of a module in which some names mean something else."""
    made = types.ModuleType(module.__name__)
    made.__dict__.update(module.__dict__)
    made.__dict__.update(names)
    return made
