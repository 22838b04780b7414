# SPDX-License-Identifier: MIT
"""A linear layer alone: on a GPU its product adds to float32 gradients, and takes sizes that are no
multiple of 8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from ... import functional
from ..._torch import is_plain_parameter
from ..cast import cast_once
from ..cost import meta_bytes, trial_of_module
from ..floors import usual
from ..mixin import Mixin, only
from ..prove import proven
from ..record import Call, Trace, value_of
from ..site import Refusal, Site
from ._pattern import Pattern, unary
from ._products import is_linear, weight_and_bias


class Linear(Mixin):
    """The class of a linear layer."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None or not self._tfk_gates["linear"].opens(x):
            return super().forward(*args, **kwargs)
        if not is_plain_parameter(self.weight):
            return super().forward(*args, **kwargs)
        return functional.linear(cast_once(x), *weight_and_bias(self))


class LinearPattern(Pattern):
    name = "linear"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        taken = {path for site in sites for path in (site.path, *site.covers)}
        partners = {module for site in sites for module in site.partners}
        for call in trace.calls:
            if call.path in taken or call.module in partners or not unary(call):
                continue
            if is_linear(call.module) and "forward" not in vars(call.module):
                taken.add(call.path)
                if not all(map(is_plain_parameter, call.module._parameters.values())):
                    reason = "a parameter has operators of its own"
                    yield Refusal(call.path, self.name, reason, "fuse before it is quantised")
                    continue
                x = trace.values[call.ins[0]]
                if proven(call.module, Linear, {}, x.shape[-1], x.dtype):
                    yield _site(call, trace)


def _site(call: Call, trace: Trace) -> Site:
    module: Any = call.module
    x, y = trace.values[call.ins[0]], trace.values[call.outs[0]]
    moved = meta_bytes(x, y, value_of(module.weight))
    return Site(
        "linear", call.path, module, Linear, function="functional.linear",
        key=(x.shape[-1], y.shape[-1], module.bias is None, x.dtype), shape=x.shape,
        launches=(1, 1), bytes=(moved, moved), features=x.shape[-1], has_products=True,
        gate=usual("linear", x.device, weight=module.weight.numel()),
        trial=trial_of_module(module, Linear, {}, x),
    )  # fmt: skip
