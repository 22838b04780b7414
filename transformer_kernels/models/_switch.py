# SPDX-License-Identifier: MIT
"""The base of the models, with their switch between PyTorch's kernels and this package's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._torch import forwards_of, has_numbers, is_bare
from ..functional import cross_entropy, dropout
from ..fuse import fuse, unfuse
from ._checks import check_targets, one_of
from ._config import TransformerConfig
from ._parts import Switched
from ._transformer import Transformer

KERNELS = ("ours", "torch")
_HEAD = forwards_of(nn.Linear)


class Model(nn.Module):
    """A stack of layers between an embedding and a ``head``. ``kernels``, which may be set at any
    time, says whether the stack is fused by :func:`transformer_kernels.fuse`."""

    config: TransformerConfig
    transformer: Transformer
    head: nn.Linear
    _kernels: str
    _waits = False  # for numbers: a model without them is fused when it is first called with some

    def __init__(self, kernels: str) -> None:
        super().__init__()
        self._kernels = one_of(type(self).__name__, "kernels", kernels, KERNELS)

    @property
    def kernels(self) -> str:
        return self._kernels

    @kernels.setter
    def kernels(self, kernels: str) -> None:
        """Fuses the stack, or takes out what that has put in. What is no setting is refused by the
        next call."""
        self._kernels = kernels
        if kernels not in KERNELS:
            return
        for module in self.transformer.modules():
            if isinstance(module, Switched):
                module.ours = kernels == "ours"
        self._waits = kernels == "ours" and not has_numbers(self._weight)
        if kernels == "torch":
            unfuse(self.transformer)
        elif not self._waits:
            fuse(self.transformer, self._example(), measure=False)

    def _example(self) -> tuple[Any, ...]:
        """Arguments of a short call of the stack."""
        raise NotImplementedError

    @property
    def _weight(self) -> Tensor:
        """A parameter of the stack, which has its device and dtype."""
        return next(self.transformer.parameters())

    def _rows(self, *shape: int) -> Tensor:
        """Random rows for the stack, which leave the user's random numbers alone."""
        weight = self._weight
        generator = torch.Generator(weight.device).manual_seed(0)
        return torch.randn(
            *shape, self.config.dim, generator=generator, dtype=weight.dtype, device=weight.device
        )

    def _check_kernels(self) -> None:
        """Begins each call: refuses what is no setting, and fuses a stack that has waited."""
        kernels = one_of(type(self).__name__, "kernels", self._kernels, KERNELS)
        if self._waits and has_numbers(self._weight):
            self.kernels = kernels

    def _dropout(self, x: Tensor, p: float) -> Tensor:
        if not p:
            return x
        return dropout(x, p) if self.kernels == "ours" else F.dropout(x, p)

    def _logits_or_loss(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """Computes logits, and the loss where targets are given. A hook on the head, or a module in
        its place, may keep the logits: then the loss does not overwrite them."""
        logits: Tensor = self.head(x)
        if targets is None:
            return logits
        check_targets(type(self).__name__, targets, logits)
        logits, targets = logits.flatten(0, -2), targets.flatten()
        if self.kernels == "torch":
            return F.cross_entropy(logits, targets)
        gradient = "in_place" if is_bare(self.head, _HEAD) else "backward"
        return cross_entropy(logits, targets, gradient=gradient)

    def extra_repr(self) -> str:
        return f"kernels={self.kernels!r}"
