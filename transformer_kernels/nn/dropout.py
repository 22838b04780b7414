# SPDX-License-Identifier: MIT
"""Dropout, and dropout with a residual, as modules."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.pointwise.dropout import bias_dropout_add, dropout


class Dropout(nn.Dropout):
    """:class:`torch.nn.Dropout` that calls :func:`transformer_kernels.functional.dropout`."""

    backend = "auto"

    def __init__(self, p: float = 0.5, inplace: bool = False, *, backend: str = "auto") -> None:
        super().__init__(p, inplace)
        self.backend = backend

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return dropout(input, self.p, self.training, self.inplace, backend=self.backend)


class DropoutAdd(nn.Module):
    """``residual + dropout(x + bias)``: :func:`transformer_kernels.functional.bias_dropout_add`."""

    def __init__(self, p: float = 0.5, *, backend: str = "auto") -> None:
        super().__init__()
        self.p = p
        self.backend = backend

    def forward(self, x: Tensor, residual: Tensor, bias: Tensor | None = None) -> Tensor:
        return bias_dropout_add(x, bias, residual, self.p, self.training, backend=self.backend)

    def extra_repr(self) -> str:
        return f"p={self.p}"
