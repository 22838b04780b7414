# SPDX-License-Identifier: MIT
"""Logits that a loss may need no more than in parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._late import Late
from ._products import weight_and_bias


class Logits(Late):
    """The result of a head that has not been computed."""

    WHY = (
        "logits that skip_logits=True leaves out, expected the loss alone to take them (fuse"
        " without skip_logits)"
    )
    _tfk_hidden: Tensor
    _tfk_head: Any

    @staticmethod
    def of(hidden: Tensor, head: Any) -> Logits:
        weight, _ = weight_and_bias(head)
        shape = (*hidden.shape[:-1], weight.shape[0])
        made: Logits = Tensor._make_wrapper_subclass(
            Logits, shape, dtype=hidden.dtype, device=hidden.device
        )
        made._tfk_hidden, made._tfk_head, made._tfk_computed = hidden, head, None
        return made

    def made(self) -> Tensor:
        weight, bias = weight_and_bias(self._tfk_head)
        return torch.nn.functional.linear(self._tfk_hidden, weight, bias)


class NoLogits:
    """Stands in a model's output for logits that were never computed. It is false, and says why
    they are missing where they are asked for anything."""

    _WHY = (
        "the logits were not computed: tfk.fuse(model, skip_logits=True) computes the loss of"
        " training without them (in evaluation mode, without labels or without gradients they are"
        " there)"
    )

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"NoLogits({self._WHY})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self._WHY}")
