# SPDX-License-Identifier: MIT
"""TorchScript: a call of a public function is one node of scripted and of traced graphs.

The node is an op with the function's own signature, and calls the function where the graph runs: it
checks, differentiates and chooses a backend as an eager call does, with any gradient mode. A saved
graph is loaded after ``import transformer_kernels``, which defines the op.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from .._library import NAMESPACE
from ._generated import run_source

_fragment = torch.library.Library(NAMESPACE, "FRAGMENT")


@functools.cache
def _scriptable(op: Any) -> Callable[..., Any]:
    """A function that calls ``op``, of a source that torch.jit.script can read: it takes no
    keyword-only arguments with defaults, so all may stand in their place."""
    arguments = op._schema.arguments
    parameters = ", ".join(
        f"{a.name}: {a.type.annotation_str}"
        + (f" = {a.default_value!r}" if a.has_default_value() else "")
        for a in arguments
    )
    handed_on = ", ".join(f"{a.name}={a.name}" for a in arguments)
    name = op._schema.name.replace("::", ".")
    source = f"def {op._opname}({parameters}):\n    return torch.ops.{name}({handed_on})\n"
    scope: dict[str, Any] = {
        "__name__": __name__, "torch": torch, "Tensor": Tensor, "Optional": Optional, "List": list,
    }  # fmt: skip
    made = run_source(source, f"<torch.jit.script of {name}>", scope)
    function: Callable[..., Any] = made[op._opname]
    return function


def graph_op(function: Callable[..., Any]) -> Any:
    """Define ``function``'s op, and have torch.jit.script compile the function to it."""
    name = f"{function.__name__}.functional"
    written = inspect.unwrap(function)  # its annotations are names of its own module
    schema = torch.library.infer_schema(written, mutates_args=(), op_name=name)
    _fragment.define(schema)
    _fragment.impl(name, function, "CompositeImplicitAutograd")
    op = getattr(getattr(torch.ops, NAMESPACE), function.__name__).functional
    function.__prepare_scriptable__ = lambda: _scriptable(op)  # type: ignore[attr-defined]
    return op
