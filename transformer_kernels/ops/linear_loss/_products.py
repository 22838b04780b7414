# SPDX-License-Identifier: MIT
"""The products of a chunk of rows: logits = x weight^T + bias, and the two of their gradient."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .._dtype import accumulate_dtype
from ..linear._ops import LINEAR
from ..linear._weights import write_product


class Products(Protocol):
    sums: tuple[torch.dtype, ...]  # the dtypes of sums that ``dweight`` adds to
    columns: int  # rows of the weight: the classes, and perhaps more that are 0

    def logits(self, x: Tensor) -> Tensor:
        """In memory that the next chunk may use again."""

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        """Of ``dlogits`` that lie where the logits did, where there are more columns than classes;
        and so the next."""

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:
        """In ``out``, whose dtype is one of ``sums``; where there are none, ``x``'s, and perhaps
        elsewhere."""


class TorchProducts:
    """Columns of ``memory`` beyond the classes are 0, and add nothing to gradients."""

    def __init__(self, weight: Tensor, bias: Tensor | None, memory: Tensor, classes: int) -> None:
        wide = (accumulate_dtype(memory),) if memory.is_cuda else ()  # cuBLAS's need no rounding
        self.sums = (memory.dtype, *wide)
        self._weight, self._bias, self._memory = weight, bias, memory
        self._classes, self.columns = classes, len(weight)

    def logits(self, x: Tensor) -> Tensor:
        out = self._memory[: len(x)]
        if self._bias is None:
            torch.mm(x, self._weight.t(), out=out)
        else:
            torch.addmm(self._bias, x, self._weight.t(), out=out)
        if self.columns > self._classes:
            out[:, self._classes :].zero_()  # of infinite rows they are NaN
        return out[:, : self._classes]

    def _all_columns(self, dlogits: Tensor) -> Tensor:
        return self._memory[: len(dlogits)] if self.columns > self._classes else dlogits

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        torch.mm(self._all_columns(dlogits), self._weight, out=out)

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:
        write_product(out, self._all_columns(dlogits).t(), x, add)
        return out


class PackedProducts:
    """Ours, of operands in order."""

    sums: tuple[torch.dtype, ...] = ()

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias, self.columns = weight, bias, len(weight)

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
