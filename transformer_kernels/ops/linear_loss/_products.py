# SPDX-License-Identifier: MIT
"""The products of a chunk of rows: logits = x weight^T + bias, and the two of its gradient."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .._dtype import accumulate_dtype
from ..linear._ops import LINEAR
from ..linear._weights import write_product


class Products(Protocol):
    sums: tuple[torch.dtype, ...]  # dtypes of sums to which ``dweight`` can add
    columns: int  # rows of the weight: the classes, and possibly padding with zeros

    def logits(self, x: Tensor) -> Tensor:
        """Computes logits, in memory that the next chunk may reuse."""

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        """Computes dx. If there are more columns than classes, ``dlogits`` must be where the logits
        were; the same holds for ``dweight``."""

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:
        """Computes dweight in ``out``, whose dtype is one of ``sums``; if there are none, in
        ``x``'s dtype, and possibly in other memory. Returns it."""


class TorchProducts:
    """PyTorch's products. Columns of ``memory`` beyond the classes are 0, and add nothing to
    gradients."""

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
            out[:, self._classes :].zero_()  # in rows with infinity they are NaN
        return out[:, : self._classes]

    def _all_columns(self, dlogits: Tensor) -> Tensor:
        return self._memory[: len(dlogits)] if self.columns > self._classes else dlogits

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        torch.mm(self._all_columns(dlogits), self._weight, out=out)

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:
        write_product(out, self._all_columns(dlogits).t(), x, add)
        return out


class PackedProducts:
    """Our products, on contiguous operands."""

    sums: tuple[torch.dtype, ...] = ()

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias, self.columns = weight, bias, len(weight)

    def logits(self, x: Tensor) -> Tensor:
        y: Tensor = LINEAR.raw.forward(x, self._weight, self._bias)
        return y

    def dx(self, dlogits: Tensor, out: Tensor) -> None:
        # Only the shape of x is read; ``out`` has the same.
        gradients = LINEAR.raw.backward(dlogits, out, self._weight, None, True, False, False)
        out.copy_(gradients[0])

    def dweight(self, dlogits: Tensor, x: Tensor, out: Tensor, add: bool) -> Tensor:  # noqa: ARG002
        gradients = LINEAR.raw.backward(dlogits, x, self._weight, None, False, True, False)
        product: Tensor = gradients[1]
        return product
