# SPDX-License-Identifier: MIT
"""Dropout, whose mask is drawn again in the backward pass instead of stored."""

from __future__ import annotations

from typing import Any

from torch import nn

from ... import functional
from ...ops.pointwise.dropout import DROPOUT
from ..cost import bytes_of, meta, trial_of_module
from ..derive import original
from ..mixin import Mixin, only
from ..record import Call, Trace
from ..site import Site
from ._pattern import Pattern, unary


class Dropout(Mixin):
    """The class of a dropout. The masks are other ones than PyTorch's, with the same
    probability."""

    p: float
    inplace: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is not None and not self.training:
            return x
        if x is None or not self._tfk_gates["dropout"].opens(x):
            return super().forward(*args, **kwargs)
        return functional.dropout(x, self.p, True, self.inplace)


class DropoutPattern(Pattern):
    name = "dropout"

    def match(self, call: Call, trace: Trace) -> Site | None:
        module = call.module
        is_one = original(type(module)) is nn.Dropout and isinstance(module, nn.Dropout)
        if not is_one or not module.p or not unary(call):
            return None
        x = trace.values[call.ins[0]]
        moved = bytes_of(DROPOUT, x=meta(x), y=meta(x))
        return Site(
            self.name, call.path, module, Dropout, function=DROPOUT.function, shape=x.shape,
            key=(module.p, x.shape[-1], x.dtype), launches=(1, 1),
            bytes=(moved + moved // 2, moved),  # PyTorch's keeps the mask, as wide as x
            trial=trial_of_module(module, Dropout, {}, x),
        )  # fmt: skip
