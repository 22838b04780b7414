# SPDX-License-Identifier: MIT
"""Activations, found by the values that they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._torch import any_autocast
from ...ops.pointwise._ops import PLAIN
from ...ops.pointwise.pointwise import FUNCTIONS
from ...ops.pointwise.table import ACTIVATIONS
from ..cost import bytes_of, meta, recorded_bytes, trial_of_module
from ..floors import usual
from ..mixin import Mixin, only
from ..record import Call, Trace
from ..site import RefusedError, Site
from ._pattern import Pattern, unary

_OPS = frozenset(("erf", "gelu", "relu", "sigmoid", "silu", "tanh"))
_GRID = torch.linspace(-6, 6, 97, dtype=torch.float64)


def may_activate(call: Call, trace: Trace) -> bool:
    """Whether the call is of a module without parameters that computes what activations do."""
    pure = not (call.module._modules or call.module._parameters)
    return pure and unary(call) and bool({node.name for node in trace.computed(call)} & _OPS)


def activation_of(function: Callable[[Tensor], Any]) -> str | None:
    """The name of the activation that a function computes; None for another one."""
    try:
        with torch.no_grad():
            y = function(_GRID.clone())
            rows = (row.name for row in ACTIVATIONS if torch.allclose(row.formula(_GRID), y))
            return next(rows, None)
    except Exception:  # whatever a function of the user's raises
        return None


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of this name, of the table of pointwise ops."""
    if name == "gelu_tanh":
        return FUNCTIONS["gelu"](x, "tanh")
    return FUNCTIONS[name](x)


def _casts(x: Tensor) -> bool:
    """Whether autocast may choose the dtype of PyTorch's result."""
    return x.dtype not in (torch.float32, torch.float64) and any_autocast()


class Activation(Mixin):
    """The class of a module that is an activation."""

    _tfk_activation: str

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None or not self._tfk_gates["activation"].opens(x) or _casts(x):
            return super().forward(*args, **kwargs)
        return activate(self._tfk_activation, x)


class ActivationPattern(Pattern):
    name = "activation"

    def match(self, call: Call, trace: Trace) -> Site | None:
        module, nodes = call.module, trace.computed(call)
        if not may_activate(call, trace):
            return None
        activation = activation_of(module.forward)
        if activation is None:
            raise RefusedError(f"no activation of ours gives the values of {type(module).__name__}")
        x, op = trace.values[call.ins[0]], PLAIN[activation]
        state = {"_tfk_activation": activation}
        return Site(
            self.name, call.path, module, Activation, state, function=op.function,
            key=(activation, x.shape[-1], x.dtype), shape=x.shape, launches=(len(nodes), 1),
            bytes=(recorded_bytes(trace, nodes), bytes_of(op, x=meta(x), y=meta(x))),
            trial=trial_of_module(module, Activation, state, x), features=x.shape[-1],
            gate=usual(self.name, x.device, calls=len(nodes)),
        )  # fmt: skip
