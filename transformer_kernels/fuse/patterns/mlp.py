# SPDX-License-Identifier: MIT
"""A linear layer with an activation behind it, and MLPs of two linear layers."""

from __future__ import annotations

from typing import Any

from ... import functional
from ..cast import cast_once
from ..cost import recorded_bytes, trial_of_module
from ..floors import usual
from ..mixin import Mixin, leave, only
from ..prove import proven
from ..record import Call, Trace
from ..site import RefusedError, Site
from ._pattern import Pattern, unary
from ._products import Parts, find_products, is_one_result, operand, parts_of


class MLP(Mixin):
    """The class of a module that is one linear layer and an activation, or two around it."""

    _tfk_parts: Parts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        parts = self._tfk_parts
        pattern = "mlp" if len(parts.linears) == 2 else "linear_act"
        if x is None or not self._tfk_gates[pattern].opens(x):
            return super().forward(*args, **kwargs)
        reason = parts.why_not(self)
        if reason is not None:
            leave(self, pattern, reason)
            return super().forward(x)
        (weight, bias), *down = parts.parameters(self)
        x = cast_once(x)
        if not down:
            y = functional.linear_act(x, weight, bias, parts.activation)
        elif x.is_cuda:
            y = functional.mlp(x, weight, bias, *down[0], parts.activation)
        else:  # as one op it would save less, and recompute the activation in a pass of its own
            hidden = functional.linear_act(x, weight, bias, parts.activation)
            y = functional.linear(hidden, *down[0])
        return parts.dropped(self, y)


class MLPPattern(Pattern):
    def __init__(self, name: str, products: int) -> None:
        self.name = name
        self._products = products

    def match(self, call: Call, trace: Trace) -> Site | None:
        found = find_products(call, trace) if unary(call) else None
        if found is None or len(found.linears) != self._products or found.own:
            return None
        first, last = found.linears[0], found.linears[-1]
        result = found.activated if self._products == 1 else last.outs[0]
        if found.first is not first or not is_one_result(call, trace, result):
            return None
        if self._products == 2 and trace.source(operand(last)) != found.activated:
            return None
        parts = parts_of(call, found, found.linears, found.activation)
        x, state = trace.values[call.ins[0]], {"_tfk_parts": parts}
        if not proven(call.module, MLP, state, x.shape[-1], x.dtype):
            raise RefusedError(f"it does not do what functional.{self.name} does")
        nodes, hidden = trace.computed(call), trace.values[first.outs[0]].shape[-1]
        return Site(
            self.name, call.path, call.module, MLP, state, function=f"functional.{self.name}",
            covers=tuple(f"{call.path}.{name}".lstrip(".") for name, _ in parts.kinds),
            key=(parts.activation, x.shape[-1], hidden, x.dtype),
            shape=x.shape, launches=(len(nodes), self._products + (self._products > 1)),
            bytes=(recorded_bytes(trace, nodes), recorded_bytes(trace, found.linears)),
            gate=usual(self.name, x.device, weight=x.shape[-1] * hidden), has_products=True,
            trial=trial_of_module(call.module, MLP, state, x), features=x.shape[-1],
        )  # fmt: skip
