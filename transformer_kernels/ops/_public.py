# SPDX-License-Identifier: MIT
"""The work that every public function does before its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar, cast

from torch.overrides import has_torch_function_variadic

from ._generated import run_source
from ._kinds import ask_overloads, only_jagged

Function = TypeVar("Function", bound=Callable[..., Any])

_SHOWN = {"input": "x"}  # names in messages

# The generated function has the wrapped one's signature: collecting and spreading arguments would
# take longer than the rest.
_SOURCE = """\
def make(function, has_torch_function, only_jagged, ask_overloads):
    def {name}({signature}):
        if has_torch_function({tensors}) and not only_jagged({tensors}):
            return ask_overloads({op!r}, {name}, {{{shown}}}, {by_name})
        return function({by_place})

    return {name}
"""


def overridable(function: Function) -> Function:
    """Makes a function ask ``__torch_function__`` of every argument that is annotated as a
    tensor."""
    return overridable_as(function.__name__)(function)


def overridable_as(op: str) -> Callable[[Function], Function]:
    """Makes functions overridable as :func:`overridable` does, under the name ``op`` in
    messages."""
    return lambda function: _overridable(function, op)


def _overridable(function: Function, op: str) -> Function:
    parameters = inspect.signature(function).parameters.values()
    has_default = {p.name: p.default is not p.empty for p in parameters}
    placed = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    tensors = [p.name for p in parameters if "Tensor" in str(p.annotation)]

    def with_default(name: str) -> str:
        return f"{name}=None" if has_default[name] else name

    keywords = [f"{name}={name}" for name in named]
    optional = [f"{name}={name}" for name in placed if has_default[name]]
    required = [name for name in placed if not has_default[name]]
    signature = [with_default(name) for name in placed]
    signature += ["*", *map(with_default, named)] if named else []
    source = _SOURCE.format(
        name=function.__name__,
        op=op,
        signature=", ".join(signature),
        tensors=", ".join(tensors),
        shown=", ".join(f"{_SHOWN.get(name, name)!r}: {name}" for name in tensors),
        by_name=", ".join([*required, *optional, *keywords]),
        by_place=", ".join([*placed, *keywords]),
    )
    made = run_source(source, f"<public {function.__name__}>")
    public = made["make"](function, has_torch_function_variadic, only_jagged, ask_overloads)
    public.__defaults__ = function.__defaults__
    public.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(public, function)
    return cast(Function, public)
