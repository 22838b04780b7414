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
    """:class:`torch.nn.LayerNorm`; ``zero_centered_weight`` scales by ``1 + weight``."""

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
    """:class:`torch.nn.RMSNorm`; ``zero_centered_weight`` scales by ``1 + weight``."""

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
