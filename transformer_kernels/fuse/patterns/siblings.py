# SPDX-License-Identifier: MIT
"""Linear layers of one parent that read one value, such as those of queries, keys and values: the
first of them computes all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import functional
from ..._torch import is_eager
from ..cast import cast_once
from ..cost import meta_bytes
from ..derive import Link, meets, original, stands
from ..floors import usual
from ..hand import give, take
from ..mixin import Mixin, leave, only
from ..prove import fused_twin, twin
from ..record import Call, Trace, value_of
from ..site import Calls, Refusal, Site
from ._pattern import Pattern, unary
from ._products import weight_and_bias


class Sibling(Mixin):
    """The class of a linear layer beside others of the same input."""

    _tfk_siblings: tuple[Link, ...] = ()  # those that this one computes; of the first alone

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None:
            return super().forward(*args, **kwargs)
        y = take(self, x)
        if y is not None:
            return y
        if not self._tfk_siblings or not self._tfk_gates["siblings"].opens(x):
            return super().forward(x)
        others: list[Any] = [link.module for link in self._tfk_siblings]
        if not self._serves(others):
            return super().forward(x)
        pairs = [weight_and_bias(module) for module in (self, *others)]
        biases = None if all(b is None for _, b in pairs) else [b for _, b in pairs]
        y, *rest = functional.linear_list(cast_once(x), [weight for weight, _ in pairs], biases)
        for module, result in zip(others, rest, strict=True):
            give(module, x, result)
        return y

    def _serves(self, others: list[Any]) -> bool:
        if not is_eager() or "_is_replica" in self.__dict__:
            return False
        if all(stands(module, nn.Linear) for module in (self, *others)):
            return True
        leave(self, "siblings", "one of them is no longer as it was when it was fused")
        return False


class SiblingsPattern(Pattern):
    name = "siblings"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        taken = {path for site in sites for path in (site.path, *site.covers)}
        groups: dict[tuple[str, int], dict[str, Call]] = {}
        for call in trace.calls:
            plain = original(type(call.module)) is nn.Linear and unary(call)
            if plain and call.path not in taken:
                groups.setdefault((call.parent, call.ins[0]), {})[call.path] = call
        for group in groups.values():
            calls = list(group.values())
            if len(calls) < 2:
                continue
            if all(meets(call.module) for call in calls):
                yield self._site(calls, trace)
            else:
                reason = "one of them has a hook, an adapter or a quantised weight"
                yield Refusal(calls[0].path, self.name, reason, "fuse before that")

    def _site(self, calls: list[Call], trace: Trace) -> Site:
        x, outs = trace.values[calls[0].ins[0]], [trace.values[c.outs[0]] for c in calls]
        first, *others = calls
        weights = meta_bytes(*map(value_of, (c.module.weight for c in calls)))
        each = meta_bytes(*outs) + weights
        return Site(
            self.name, first.path, first.module, Sibling,
            {"_tfk_siblings": tuple(Link(c.module) for c in others)},
            partners=tuple(c.module for c in others), function="functional.linear_list",
            key=(x.shape[-1], *(y.shape[-1] for y in outs), x.dtype), shape=x.shape,
            gate=usual(self.name, x.device, weight=x.shape[-1] * outs[0].shape[-1]),
            launches=(len(calls), len(calls)), features=x.shape[-1], has_products=True,
            bytes=(each + len(calls) * meta_bytes(x), each + len(calls) * meta_bytes(x)),
            trial=_trial([c.module for c in calls], x.dtype),
        )  # fmt: skip


def _trial(modules: list[nn.Module], dtype: torch.dtype) -> Callable[[int], Calls]:
    """Times the layers one after the other, with the handing over."""

    def trial(rows: int) -> Calls:
        twins = [twin(module, Tensor.detach) for module in modules]
        others = [fused_twin(module, Sibling, {}) for module in twins[1:]]
        links = tuple(Link(module) for module in others)
        ours = [fused_twin(twins[0], Sibling, {"_tfk_siblings": links}), *others]
        weight = twins[0].weight
        x = torch.randn(1, rows, weight.shape[1], dtype=dtype, device=weight.device)
        parameters = tuple(p for module in twins for p in module.parameters())
        return Calls(
            lambda x: tuple(module.forward(x) for module in twins),
            lambda x: tuple(module.forward(x) for module in ours), (x,), parameters,
        )  # fmt: skip

    return trial
