# SPDX-License-Identifier: MIT
"""A linear layer and the activation behind it in the forward of a larger module, as in layers that
have no module for their MLP.

The layer computes both and returns its own result, which has its true value. The activation's
result waits for who asks for it: the activation's module, or a function such as ``F.gelu``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._torch import is_eager
from ...ops.linear._ahead import as_activation, linear_and_act
from ..cost import meta_bytes, recorded_bytes
from ..derive import Link, meets, stands
from ..floors import usual
from ..hand import Given, asked, give, miss, misses, take
from ..mixin import Mixin, only
from ..prove import fused_twin, twin
from ..record import Call, Node, Trace, Value
from ..site import Calls, Refusal, Site
from ._pattern import Pattern, unary
from ._products import is_linear, loose_activation, weight_and_bias
from .activation import Activation, activate, activation_of, may_activate

_FUNCTIONS = {F.relu: "relu", torch.relu: "relu", Tensor.relu: "relu", F.silu: "silu"}
_STOCK: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
_MOST_MISSES = 3  # activations that nobody asked for; then the layer computes its own result alone


def _function_of(func: Any, kwargs: Mapping[str, Any]) -> str | None:
    """The activation that a call of a function computes; None for another one, and in place."""
    if func is F.gelu:
        return "gelu_tanh" if kwargs.get("approximate") == "tanh" else "gelu"
    return None if kwargs.get("inplace") else _FUNCTIONS.get(func)


class _Waiting(NamedTuple):
    """The activation of a layer's result, for the function that will ask for it."""

    layer: Any
    z: Tensor
    given: Given
    activation: str

    def taken(self) -> Tensor | None:
        y = self.given.of(self.z)
        if y is not None:
            asked(self.layer)
        return y


class Activated(Tensor):
    """A layer's result, which has its true value and knows that of one activation of it."""

    _tfk_waiting: _Waiting | None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if len(args) == 1 and type(args[0]) is Activated:
                y = _asked(args[0], _function_of(func, kwargs))
                if y is not None:
                    return y
            return func(*args, **kwargs)


def _asked(z: Activated, activation: str | None) -> Tensor | None:
    waiting = z._tfk_waiting
    if waiting is None or waiting.activation != activation:
        return None
    z._tfk_waiting = None
    y = waiting.taken()
    return None if y is None else as_activation(z.as_subclass(Tensor), y, waiting.activation)


class Behind(NamedTuple):
    """The activation behind a linear layer."""

    activation: str
    module: Link | None  # that computes it; None for a function


class LinearThenAct(Mixin):
    """The class of a linear layer and of the activation's module behind it."""

    _tfk_behind_layer: Behind | None = None  # of the layer alone

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None:
            return super().forward(*args, **kwargs)
        y = take(self, x)
        if y is not None:
            return y
        behind = self._tfk_behind_layer
        if behind is None or not self._tfk_gates["linear_then_act"].opens(x):
            return super().forward(x)
        both = self._both(x, behind)
        if both is None:
            return super().forward(x)
        z, y = both
        if behind.module is not None:
            give(behind.module.module, z, as_activation(z, y, behind.activation))
            return z
        shown = z.as_subclass(Activated)
        shown._tfk_waiting = _Waiting(self, z, Given(z, y), behind.activation)
        miss(self)  # until it is asked for
        return shown

    def _both(self, x: Tensor, behind: Behind) -> tuple[Tensor, Tensor] | None:
        waits = self if behind.module is None else behind.module.module
        serves = (
            type(x) is Tensor
            and is_eager()
            and misses(waits) < _MOST_MISSES
            and stands(self)
            and "_is_replica" not in self.__dict__
        )
        return linear_and_act(x, *weight_and_bias(self), behind.activation) if serves else None


# ---- finding ------------------------------------------------------------------------------------


def _is_layer(call: Call) -> bool:
    """Whether the call is of a module that is a linear layer and nothing else."""
    return unary(call) and is_linear(call.module)


class _Found(NamedTuple):
    activation: str
    call: Call | None  # of the activation's module
    nodes: list[Node]


def _behind(layer: Call, modules: Mapping[int, Call], trace: Trace) -> _Found | None:
    """The activation that reads a layer's result; None where something else does."""
    value = layer.outs[0]
    call = modules.get(value)
    if call is not None:
        serves = may_activate(call, trace) and not getattr(call.module, "inplace", False)
        name = activation_of(call.module.forward) if serves else None
        return None if name is None else _Found(name, call, trace.computed(call))
    node = next(iter(trace.users.get(value, ())), None)
    if node is None or node.path != layer.parent or node.kwargs.get("inplace"):
        return None
    name = loose_activation(node)
    return None if name is None else _Found(name, None, [node])


class LinearThenActPattern(Pattern):
    name = "linear_then_act"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        taken = {path for site in sites for path in site.covers}
        taken |= {site.path for site in sites if is_linear(site.module)}
        modules = {call.ins[0]: call for call in trace.calls if unary(call)}
        ours = {site.path for site in sites if site.mixin is Activation}
        for layer in trace.calls:
            if not _is_layer(layer) or layer.path in taken:
                continue
            found = _behind(layer, modules, trace)
            if found is None:
                continue
            taken.add(layer.path)
            if meets(layer.module):
                yield self._site(layer, found, trace, ours)
            else:
                reason = "the layer has a hook, an adapter or a quantised weight"
                yield Refusal(layer.path, self.name, reason, "fuse before that")

    def _site(self, layer: Call, found: _Found, trace: Trace, ours: Collection[str]) -> Site:
        x, z = trace.values[layer.ins[0]], trace.values[layer.outs[0]]
        behind = None if found.call is None else found.call.module
        nodes = [*trace.computed(layer), *found.nodes]
        moved = recorded_bytes(trace, nodes)
        link = None if behind is None else Link(behind)
        return Site(
            self.name, layer.path, layer.module, LinearThenAct,
            {"_tfk_behind_layer": Behind(found.activation, link)},
            partners=() if behind is None else (behind,), function="functional.linear_act",
            key=(found.activation, x.shape[-1], z.shape[-1], x.dtype, behind is None),
            shape=x.shape, features=x.shape[-1], launches=(len(nodes), 1),
            gate=usual(self.name, x.device, weight=x.shape[-1] * z.shape[-1]),
            bytes=(moved, moved - meta_bytes(z)), has_products=True,
            trial=_trial(layer, found, x, found.call is not None and found.call.path in ours),
        )  # fmt: skip


def _trial(layer: Call, found: _Found, x: Value, is_ours: bool) -> Callable[[int], Calls]:
    """Times both, with the handing over; the activation before is ours where that is a site."""
    name, stock_act = found.activation, _STOCK.get(found.activation, torch.clone)
    behind = None if found.call is None else found.call.module

    def trial(rows: int) -> Calls:
        stock = twin(layer.module, Tensor.detach)
        act, our_act, link = stock_act, stock_act, None
        if behind is not None:
            act = partial(activate, name) if is_ours else behind.forward
            ahead = fused_twin(twin(behind), LinearThenAct, {})
            our_act, link = ahead.forward, Link(ahead)
        ours = fused_twin(stock, LinearThenAct, {"_tfk_behind_layer": Behind(name, link)})
        made = torch.randn(1, rows, x.shape[-1], dtype=x.dtype, device=x.device)
        return Calls(
            lambda x: act(stock.forward(x)), lambda x: our_act(ours.forward(x)), (made,),
            tuple(stock.parameters()),
        )  # fmt: skip

    return trial
