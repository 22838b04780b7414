# SPDX-License-Identifier: MIT
"""Dropout, and dropout with a residual, as modules."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.pointwise.dropout import bias_dropout_add, dropout


class Dropout(nn.Dropout):
    """:class:`torch.nn.Dropout` that calls :func:`transformer_kernels.functional.dropout`.

    Args:
        p: the probability that an element is dropped, in training.
        inplace: write the result to the input.
        backend: as for the function.

    >>> layer = tfk.nn.Dropout(0.1).eval()
    >>> layer(torch.ones(3))
    tensor([1., 1., 1.])
    """

    backend = "auto"

    def __init__(self, p: float = 0.5, inplace: bool = False, *, backend: str = "auto") -> None:
        super().__init__(p, inplace)
        self.backend = backend

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return dropout(input, self.p, self.training, self.inplace, backend=self.backend)


class DropoutAdd(nn.Module):
    """``residual + dropout(x + bias)``: :func:`transformer_kernels.functional.bias_dropout_add`.

    Args:
        p: the probability that an element is dropped, in training.
        backend: as for the function.

    The call takes ``x`` and ``residual`` (..., C), and a ``bias`` (C) or None.

    >>> add = tfk.nn.DropoutAdd(0.1)
    >>> x, residual = torch.randn(2, 2, 5, 64)
    >>> add(x, residual, torch.zeros(64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(self, p: float = 0.5, *, backend: str = "auto") -> None:
        super().__init__()
        self.p = p
        self.backend = backend

    def forward(self, x: Tensor, residual: Tensor, bias: Tensor | None = None) -> Tensor:
        return bias_dropout_add(x, bias, residual, self.p, self.training, backend=self.backend)

    def extra_repr(self) -> str:
        return f"p={self.p}"
