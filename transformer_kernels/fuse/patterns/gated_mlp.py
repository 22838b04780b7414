# SPDX-License-Identifier: MIT
"""MLPs in which an activation gates another product; both may be packed as one."""

from __future__ import annotations

from typing import Any

from ... import functional
from ...ops.pointwise.table import ACTIVATIONS
from ..cast import cast_once
from ..cost import recorded_bytes, trial_of_module
from ..floors import usual
from ..mixin import Mixin, leave, only
from ..prove import proven
from ..record import Call, Trace
from ..site import RefusedError, Site
from ._pattern import Pattern, unary
from ._products import Parts, find_products, is_one_result, operand, parts_of

_GATED = {row.name: row.gated for row in ACTIVATIONS if row.gated}


class GatedMLP(Mixin):
    """The class of a module that is a gated MLP."""

    _tfk_parts: Parts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None or not self._tfk_gates["gated_mlp"].opens(x):
            return super().forward(*args, **kwargs)
        parts = self._tfk_parts
        reason = parts.why_not(self)
        if reason is not None:
            leave(self, "gated_mlp", reason)
            return super().forward(x)
        (gate, bias), *up, (down, down_bias) = parts.parameters(self)
        up_weight, up_bias = up[0] if up else (None, None)
        y = functional.gated_mlp(
            cast_once(x), gate, up_weight, down, parts.activation, bias=bias, up_bias=up_bias,
            down_bias=down_bias,
        )  # fmt: skip
        return parts.dropped(self, y)


class GatedMLPPattern(Pattern):
    name = "gated_mlp"

    def match(self, call: Call, trace: Trace) -> Site | None:
        found = find_products(call, trace) if unary(call) else None
        if found is None or [node.name for node in found.own] != ["mul"]:
            return None
        *before, down = found.linears
        if found.first not in before or not is_one_result(call, trace, down.outs[0]):
            return None
        activation = _GATED.get(found.activation)
        if activation is None:
            raise RefusedError(f"no gated MLP has the activation {found.activation}")
        linears = [found.first, *(node for node in before if node is not found.first), down]
        parts = parts_of(call, found, linears, activation)
        x, state = trace.values[call.ins[0]], {"_tfk_parts": parts}
        if not proven(call.module, GatedMLP, state, x.shape[-1], x.dtype):
            raise RefusedError("it does not do what functional.gated_mlp does")
        nodes, hidden = trace.computed(call), trace.values[operand(down)].shape[-1]
        return Site(
            self.name, call.path, call.module, GatedMLP, state, function="functional.gated_mlp",
            covers=tuple(f"{call.path}.{name}".lstrip(".") for name, _ in parts.kinds),
            key=(activation, len(linears), hidden, x.shape[-1], x.dtype),
            shape=x.shape, launches=(len(nodes), len(linears) + 1), features=x.shape[-1],
            gate=usual(self.name, x.device, weight=x.shape[-1] * hidden),
            bytes=(recorded_bytes(trace, nodes), recorded_bytes(trace, [*linears, *found.own])),
            trial=trial_of_module(call.module, GatedMLP, state, x), has_products=True,
        )  # fmt: skip
