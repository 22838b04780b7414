# SPDX-License-Identifier: MIT
"""Softmax and LogSoftmax, subclasses of PyTorch's, so that isinstance checks keep working."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.softmax.softmax import log_softmax, softmax


class _Options(nn.Module):
    """Arguments beyond PyTorch's. The class attributes serve modules saved without them."""

    scale: float = 1.0
    causal: bool = False
    backend: str = "auto"

    def __init__(
        self,
        dim: int | None = None,
        *,
        scale: float = 1.0,
        causal: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(dim)
        self.scale = scale
        self.causal = causal
        self.backend = backend

    def extra_repr(self) -> str:
        text = super().extra_repr()
        for name in ("scale", "causal", "backend"):
            value = getattr(self, name)
            if value != getattr(_Options, name):
                text += f", {name}={value!r}"
        return text


class Softmax(_Options, nn.Softmax):
    """:class:`torch.nn.Softmax` with a scale and masks, as attention has them.

    Args:
        dim: the dimension that sums to 1.
        scale: factor of the input.
        causal: hide later keys, over the last two dimensions (queries, keys).
        backend: as for :func:`transformer_kernels.functional.softmax`.

    The call takes the input and a ``mask``, boolean (true is kept) or additive.

    >>> softmax = tfk.nn.Softmax(-1, scale=0.125, causal=True)
    >>> softmax(torch.randn(2, 4, 16, 16)).shape
    torch.Size([2, 4, 16, 16])
    """

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: A002
        return softmax(
            input, self.dim, _stacklevel=5, scale=self.scale, mask=mask, causal=self.causal,
            backend=self.backend,
        )  # fmt: skip


class LogSoftmax(_Options, nn.LogSoftmax):
    """:class:`torch.nn.LogSoftmax` with a scale and masks.

    Args:
        dim: the dimension whose probabilities sum to 1.
        scale: factor of the input.
        causal: hide later keys, over the last two dimensions (queries, keys).
        backend: as for :func:`transformer_kernels.functional.log_softmax`.

    The call takes the input and a ``mask``, as that of :class:`Softmax` does.

    >>> tfk.nn.LogSoftmax(-1)(torch.zeros(2, 4))
    tensor([[-1.3863, -1.3863, -1.3863, -1.3863],
            [-1.3863, -1.3863, -1.3863, -1.3863]])
    """

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: A002
        return log_softmax(
            input, self.dim, _stacklevel=5, scale=self.scale, mask=mask, causal=self.causal,
            backend=self.backend,
        )  # fmt: skip
