# SPDX-License-Identifier: MIT
"""The head of a model that is fused without logits, between ranks: each of them has the logits of
its own tokens of the vocabulary for as long as the loss takes, and none has all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from ..fuse.patterns._products import weight_and_bias
from ..fuse.patterns.skip_logits import Head
from ..fuse.site import Site


class SplitHead(Head):
    """The class of a head whose weight is a DTensor."""

    _tfk_hooks: list[Any]  # those that the split has made

    def is_ready(self) -> bool:
        own = self.__dict__
        return _hooks(self) == self._tfk_hooks and not (
            own["_backward_hooks"] or own["_backward_pre_hooks"] or "forward" in own
        )

    def alone(self, x: Tensor) -> Any:
        return self._whole(super().alone(self._replicated(x)))

    def loss(self, hidden: Tensor, target: Tensor, **options: Any) -> Tensor:
        if options["weight"] is not None:
            options["weight"] = self._replicated(options["weight"])
        return self._whole(
            super().loss(self._replicated(hidden), self._replicated(target), **options)
        )

    def _replicated(self, x: Tensor) -> Any:
        weight: Any = weight_and_bias(self)[0]
        return DTensor.from_local(x, weight.device_mesh, [Replicate()], run_check=False)

    def _whole(self, x: Any) -> Tensor:
        whole: Tensor = x.redistribute(placements=[Replicate()]).to_local()
        return whole


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def split_site(site: Site) -> Site:
    """The site of a head that has been split."""
    return replace(site, mixin=SplitHead, state={"_tfk_hooks": _hooks(site.module)})
