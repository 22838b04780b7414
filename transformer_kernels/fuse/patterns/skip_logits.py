# SPDX-License-Identifier: MIT
"""The loss of a linear head in training without its logits, where that was asked for.

The head returns logits that wait. Cross entropy takes them as they are, wherever in the model it is
called; for anything else that reads them they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ... import functional
from ..._torch import is_eager
from ...ops.linear_loss._ops import LINEAR_CROSS_ENTROPY
from ..cost import meta_bytes
from ..derive import Link, meets, stands
from ..mixin import Mixin, leave, only
from ..record import Node, Trace, value_of
from ..site import Refusal, Site
from ._late import ASKED, while_asked
from ._logits import LOSS, ROWS, Logits, settled
from ._pattern import Pattern
from ._products import PRODUCTS, is_linear, operand, weight_and_bias


class Head(Mixin):
    """The class of the linear layer that makes the logits."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None or ASKED not in self.__dict__:
            return super().forward(*args, **kwargs)
        return Logits.of(x, self)

    def alone(self, x: Tensor) -> Any:
        return super().forward(x)

    def is_ready(self) -> bool:
        """Whether the layer is as it was when it was fused."""
        return stands(self)

    def loss(self, hidden: Tensor, target: Tensor, **options: Any) -> Tensor:
        """The loss of labels (N,) from what the layer takes, (N, C)."""
        weight, bias = weight_and_bias(self)
        found: Tensor = functional.linear_cross_entropy(
            hidden, weight, target, linear_bias=bias, **options
        )
        return found


class WithoutLogits(Mixin):
    """The class of a model whose loss in training is computed from what its head takes."""

    _tfk_keeps_signature = True
    _tfk_head: Link

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._trains():
            return super().forward(*args, **kwargs)
        head = self._tfk_head.module
        if not (isinstance(head, Head) and head.is_ready()):
            leave(self, "skip_logits", "the head is no longer as it was when it was fused")
            return super().forward(*args, **kwargs)
        return settled(while_asked([head], super().forward, args, kwargs))

    def _trains(self) -> bool:
        is_other = "_is_replica" in self.__dict__  # whose head is another one
        return self.training and torch.is_grad_enabled() and is_eager() and not is_other


class SkipLogitsPattern(Pattern):
    name = "skip_logits"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        products = [_product(node, trace) for node in trace.nodes if node.name == LOSS]
        heads = [p for p in products if p is not None and is_linear(model.get_submodule(p.path))]
        if not heads:
            reason = "no cross entropy takes the logits of a linear head as they are"
            yield Refusal("", self.name, reason, "give labels in inputs")
            return
        product = max(heads, key=lambda p: meta_bytes(trace.values[p.outs[0]]))
        head = model.get_submodule(product.path)
        if head is model or not meets(head):
            yield Refusal(product.path, self.name, "the head has a hook or an adapter")
            return
        x, logits = trace.values[operand(product)], trace.values[product.outs[0]]
        if logits.shape[-1] <= x.shape[-1]:
            yield Refusal(product.path, self.name, "its logits are no wider than what it takes")
            return
        weight = value_of(cast(Tensor, head.weight))
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


def _product(loss: Node, trace: Trace) -> Node | None:
    """The product whose rows a loss of labels takes, moved at most as :class:`Logits` follow."""
    if len(loss.ins) < 2 or trace.values[loss.ins[1]].dtype.is_floating_point:
        return None
    node = trace.maker.get(loss.ins[0])
    while node is not None and node.name in ROWS:
        node = trace.maker.get(node.ins[0])
    return node if node is not None and node.name in PRODUCTS else None
