# SPDX-License-Identifier: MIT
"""The products of a chunk of rows: logits = x weight^T + bias, and the two of their gradient."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..linear._ops import LINEAR


class Products(Protocol):
    adds: bool  # whether ``dweight`` adds to a sum of its own dtype

    def logits(self, x: Tensor) -> Tensor:
        """In memory that the next chunk may use again."""

    def dx(self, dlogits: Tensor, out: Tensor) -> None: ...

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:
        """In ``out``, or where the product does not ``add``, perhaps elsewhere."""


class TorchProducts:
    adds = True

    def __init__(self, weight: Tensor, bias: Tensor | None, memory: Tensor) -> None:
        self._weight, self._bias, self._memory = weight, bias, memory

    def logits(self, x: Tensor) -> Tensor:
        out = self._memory[: len(x)]
        if self._bias is None:
            return torch.mm(x, self._weight.t(), out=out)
        return torch.addmm(self._bias, x, self._weight.t(), out=out)

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        torch.mm(dlogits, self._weight, out=out)

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:
        return out.addmm_(dlogits.t(), x, beta=1 if add else 0)


class PackedProducts:
    """Ours, of operands in order."""

    adds = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def logits(self, x: Tensor) -> Tensor:
        y: Tensor = LINEAR.raw.forward(x, self._weight, self._bias)
        return y

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        # Of x, in whose place ``out`` stands, the shape alone is read.
        gradients = LINEAR.raw.backward(dlogits, out, self._weight, None, True, False, False)
        out.copy_(gradients[0])

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:  # noqa: ARG002
        gradients = LINEAR.raw.backward(dlogits, x, self._weight, None, False, True, False)
        product: Tensor = gradients[1]
        return product
