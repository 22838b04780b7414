# SPDX-License-Identifier: MIT
"""The loss of a language model in training without its logits, where that was asked for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..._torch import is_eager
from ...ops.linear_loss._ops import LINEAR_CROSS_ENTROPY
from ..cost import meta_bytes
from ..derive import Link, meets, stands
from ..mixin import Mixin, leave, only
from ..record import Trace, value_of
from ..site import Refusal, Site
from ._logits import Logits, NoLogits
from ._pattern import Pattern
from ._products import is_linear
from .loss import loss_of_next

_ASKED = "_tfk_asked"  # of a head, while its model computes a loss


class Head(Mixin):
    """The class of the linear layer that makes the logits."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None or _ASKED not in self.__dict__:
            return super().forward(*args, **kwargs)
        return Logits.of(x, self)


class WithoutLogits(Mixin):
    """The class of a model whose loss in training is computed from what its head takes."""

    _tfk_keeps_signature = True
    _tfk_head: Link

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._asks(args, kwargs):
            return super().forward(*args, **kwargs)
        head = self._tfk_head.module
        if not stands(head) or self.loss_function is not loss_of_next:
            leave(self, "skip_logits", "the head or the loss is no longer as it was when fused")
            return super().forward(*args, **kwargs)
        head.__dict__[_ASKED] = True
        try:
            return _without(super().forward(*args, **kwargs))
        finally:
            del head.__dict__[_ASKED]

    def _asks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call computes a loss to train by."""
        if not self.training or not torch.is_grad_enabled() or not is_eager():
            return False
        if getattr(self, "_is_replica", False):  # whose head is another one
            return False
        given = inspect.signature(super().forward).bind_partial(*args, **kwargs).arguments
        return given.get("labels") is not None


def _without(result: Any) -> Any:
    """The model's result with the reason in the place of logits that were not computed."""
    if isinstance(result, dict):
        for name, value in result.items():
            if isinstance(value, Logits):
                result[name] = NoLogits()
        return result
    return tuple(NoLogits() if isinstance(x, Logits) else x for x in result)


class SkipLogitsPattern(Pattern):
    name = "skip_logits"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]
    ) -> Iterator[Site | Refusal]:
        root = next(
            (s for s in sites if "loss_function" in s.attributes and s.module is model), None
        )
        node = next((n for n in trace.nodes if n.name == "cross_entropy"), None)
        product = None if node is None else trace.source_node(node.ins[0])
        head = None if product is None else model.get_submodule(product.path)
        if root is None or product is None or head is None or not is_linear(head):
            reason = "its loss is not that of a causal language model's linear head"
            yield Refusal("", self.name, reason, "give labels in inputs")
            return
        if not meets(head):
            yield Refusal(product.path, self.name, "the head has a hook or an adapter")
            return
        x, logits = trace.values[product.ins[0]], trace.values[product.outs[0]]
        weight = value_of(head.weight)
        for module, mixin, state in (
            (head, Head, {}),
            (model, WithoutLogits, {"_tfk_head": Link(head)}),
        ):
            path = product.path if module is head else ""
            yield Site(
                self.name, path, module, mixin, state, function=LINEAR_CROSS_ENTROPY.function,
                key=(mixin.__name__,), shape=x.shape, launches=None,
                bytes=(meta_bytes(x, weight, logits, logits), meta_bytes(x, weight)),
            )  # fmt: skip
