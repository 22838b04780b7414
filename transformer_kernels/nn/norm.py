# SPDX-License-Identifier: MIT
"""LayerNorm and RMSNorm, subclasses of PyTorch's, so that isinstance checks keep working."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..ops.norm.layer_norm import layer_norm
from ..ops.norm.rms_norm import rms_norm


class _Options(nn.Module):
    """Arguments beyond PyTorch's. The class attributes serve modules saved without them."""

    zero_centered_weight: bool = False
    backend: str = "auto"

    def reset_parameters(self) -> None:
        super().reset_parameters()  # type: ignore[misc]
        if self.zero_centered_weight and isinstance(self.weight, nn.Parameter):
            nn.init.zeros_(self.weight)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self.zero_centered_weight:
            text += ", zero_centered_weight=True"
        if self.backend != "auto":
            text += f", backend={self.backend!r}"
        return text

    def _set_options(self, zero_centered_weight: bool, backend: str) -> None:
        self.zero_centered_weight = zero_centered_weight
        self.backend = backend
        if zero_centered_weight:
            self.reset_parameters()


class LayerNorm(_Options, nn.LayerNorm):
    """:class:`torch.nn.LayerNorm`: its constructor, arguments and ``state_dict``.

    Args:
        normalized_shape: the last dimensions of the input, which are normalised together.
        eps: added to the variance.
        elementwise_affine: whether the module has a weight.
        bias: whether it also has a bias.
        device: device of the parameters.
        dtype: dtype of the parameters; float32 beside 16-bit input needs no cast.
        zero_centered_weight: scale by ``1 + weight``; the weight then starts at 0.
        backend: as for :func:`transformer_kernels.functional.layer_norm`.

    >>> norm = tfk.nn.LayerNorm(64)
    >>> norm.load_state_dict(torch.nn.LayerNorm(64).state_dict())
    <All keys matched successfully>
    >>> norm(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        zero_centered_weight: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._set_options(zero_centered_weight, backend)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps,
            zero_centered_weight=self.zero_centered_weight, backend=self.backend,
        )  # fmt: skip


class RMSNorm(_Options, nn.RMSNorm):
    """:class:`torch.nn.RMSNorm`: its constructor, arguments and ``state_dict``.

    Args:
        normalized_shape: the last dimensions of the input, which are normalised together.
        eps: added to the mean of squares; by default the machine epsilon of the arithmetic.
        elementwise_affine: whether the module has a weight.
        device: device of the weight.
        dtype: dtype of the weight; float32 beside 16-bit input needs no cast.
        zero_centered_weight: scale by ``1 + weight``, as Gemma does; the weight then starts at 0.
        backend: as for :func:`transformer_kernels.functional.rms_norm`.

    >>> norm = tfk.nn.RMSNorm(64, eps=1e-6)
    >>> norm(torch.randn(2, 5, 64, dtype=torch.bfloat16)).dtype
    torch.bfloat16
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        zero_centered_weight: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._set_options(zero_centered_weight, backend)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(
            x, self.normalized_shape, self.weight, self.eps,
            zero_centered_weight=self.zero_centered_weight, backend=self.backend,
        )  # fmt: skip
