# SPDX-License-Identifier: MIT
"""The work that every public function does before its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any, TypeVar, cast

from torch.overrides import has_torch_function_variadic

from .._names import ABSENT, refuse_absent, refuse_call
from ._generated import run_source
from ._kinds import ask_overloads, only_jagged

Function = TypeVar("Function", bound=Callable[..., Any])

_SHOWN = {"input": "x"}  # names in messages

# The generated function has the wrapped one's signature: collecting and spreading arguments would
# take longer than the rest. ``more`` and ``unknown`` take what the signature lacks. A required
# argument has a default that has_torch_function finds; a function that asks it itself compares.
_SOURCE = """\
def make(function, absent, has_torch_function, only_jagged, ask_overloads, refuse_absent,
         refuse_call):
    def {name}({signature}):
        if unknown or more:
            refuse_call({name}, more, unknown){check}
        return function({by_place})

    return {name}
"""

_REQUIRED = """
        if {missing}:
            refuse_absent({op!r}, {{{shown}}})"""

_OVERLOADS = """
        if has_torch_function({asked}) and not only_jagged({asked}):
            return ask_overloads({op!r}, {name}, {{{shown}}}, {by_name})"""


def explained(function: Function) -> Function:
    """Makes a function answer a call with arguments that it does not have. The function asks
    ``__torch_function__`` itself, or takes no tensors."""
    return _generated(function, function.__name__, asks=False)


def overridable(function: Function) -> Function:
    """Makes a function ask ``__torch_function__`` of every argument that is annotated as a
    tensor."""
    return overridable_as(function.__name__)(function)


def overridable_as(op: str) -> Callable[[Function], Function]:
    """Makes functions overridable as :func:`overridable` does, under the name ``op`` in
    messages."""
    return lambda function: _generated(function, op, asks=True)


def _by_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes keyword-only arguments positional: Python compares a keyword with one name after the
    other, which takes a tenth of an eager call of attention."""
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    return FunctionType(
        code.replace(co_argcount=count, co_kwonlyargcount=0), function.__globals__,
        function.__name__, None, function.__closure__,
    )  # fmt: skip


def _generated(function: Function, op: str, asks: bool) -> Function:
    parameters = inspect.signature(function).parameters.values()
    default = {p.name: p.default for p in parameters if p.default is not p.empty}
    placed = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    optional = [f"{name}={name}" for name in placed if name in default]
    required = [name for name in placed if name not in default]
    asked = [p.name for p in parameters if "Tensor" in str(p.annotation) or p.name in required]
    keywords = [f"{name}={name}" for name in named]
    signature = [f"{name}=None" for name in placed]
    signature += ["*more", *(f"{name}=None" for name in named), "**unknown"]
    check = (_OVERLOADS if asks else _REQUIRED).format(
        asked=", ".join(asked),
        missing=" or ".join(f"{name} is absent" for name in required),
        op=op,
        name=function.__name__,
        shown=", ".join(
            f"{_SHOWN.get(name, name)!r}: {name}" for name in (asked if asks else required)
        ),
        by_name=", ".join([*required, *optional, *keywords]),
    )
    source = _SOURCE.format(
        name=function.__name__,
        signature=", ".join(signature),
        check=check,
        by_place=", ".join([*placed, *(named if asks else keywords)]),
    )
    made = run_source(source, f"<public {function.__name__}>")
    public = made["make"](
        _by_place(function) if asks else function, ABSENT, has_torch_function_variadic, only_jagged,
        ask_overloads, refuse_absent, refuse_call,
    )  # fmt: skip
    absent = (ABSENT,) * len(required)
    public.__defaults__ = (*absent, *(default[name] for name in placed if name in default))
    public.__kwdefaults__ = {name: default[name] for name in named}
    update_wrapper(public, function)
    return cast(Function, public)
