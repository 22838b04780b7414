# SPDX-License-Identifier: MIT
"""A linear layer whose frozen weight is stored in 8 or 4 bits per number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.linear.quantized_linear import quantize_weight, quantized_linear


class QuantizedLinear(nn.Module):
    """:func:`transformer_kernels.functional.quantized_linear` as a module.

    ``packed`` and ``scales`` are buffers and ``bias`` is a parameter; the three are its state_dict.
    The weight of a new module is zero: use :meth:`from_linear`, or load a state_dict. Casts of the
    module leave the scales in their dtype.

    Args:
        in_features: K, the columns of the input.
        out_features: N, the columns of the result.
        bias: whether the layer has a bias.
        bits: 4 or 8, the bits of a number.
        group_size: the numbers that share a scale, a divisor of K; None for one scale per row.
        scale_dtype: float32, float16 or bfloat16.
        backend: as for the function.
        of_bias: ``device`` and ``dtype`` of the bias.

    >>> layer = tfk.nn.QuantizedLinear.from_linear(torch.nn.Linear(256, 32), bits=4)
    >>> layer(torch.randn(1, 256)).shape
    torch.Size([1, 32])
    """

    packed: Tensor
    scales: Tensor
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        bits: int = 4,
        group_size: int | None = 128,
        scale_dtype: torch.dtype = torch.float32,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bits, self.group_size = bits, group_size
        self.backend = backend
        row = torch.zeros(1, in_features, device=device)
        parts = quantize_weight(row, bits, group_size, scale_dtype=scale_dtype)
        for name, part in zip(("packed", "scales"), parts, strict=True):
            self.register_buffer(name, part.repeat(out_features, 1))
        self.bias = (
            nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        )

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, bits: int = 4, group_size: int | None = 128, **options: Any
    ) -> QuantizedLinear:
        """Quantizes the weight of ``linear``, and takes its bias."""
        weight, bias = linear.weight.detach(), linear.bias
        rows, terms = weight.shape
        options |= {"device": weight.device, "dtype": weight.dtype}
        module = cls(terms, rows, bias is not None, bits=bits, group_size=group_size, **options)
        module.packed, module.scales = quantize_weight(
            weight, bits, group_size, scale_dtype=module.scales.dtype
        )
        module.bias = bias
        return module.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return quantized_linear(input, self.packed, self.scales, self.bias, backend=self.backend)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        scales = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype is not scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def extra_repr(self) -> str:
        text = (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" bias={self.bias is not None}, bits={self.bits}, group_size={self.group_size}"
        )
        return text if self.backend == "auto" else f"{text}, backend={self.backend!r}"
