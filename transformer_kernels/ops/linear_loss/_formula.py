# SPDX-License-Identifier: MIT
"""Cross-entropy of a linear layer in PyTorch operations, differentiable any number of times. All
logits are in memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._torch import linear
from ..loss import _formula as loss
from ..loss import _stock


def forward(
    x: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor,
    weight: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float,
    reduction: int, wide: bool, *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    """Computes the loss. The remaining arguments change how kernels compute it, but not the
    result."""
    loss.check_labels(target, linear_weight.shape[0], ignore_index, "linear_cross_entropy")
    bias = None if linear_bias is None else linear_bias.to(x.dtype)
    logits = linear(x, linear_weight.to(x.dtype), bias)
    return loss.forward(
        logits, target, None, weight, ignore_index, label_smoothing, z_loss, softcap, reduction,
        wide,
    )  # fmt: skip


def stock(
    x: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor,
    weight: Tensor | None, *numbers: Any,
) -> Tensor:  # fmt: skip
    """In PyTorch's own calls, which hold the logits too."""
    bias = None if linear_bias is None else linear_bias.to(x.dtype)
    logits = linear(x, linear_weight.to(x.dtype), bias)
    *options, _chunk_bytes, _float32_sums, _packed = numbers
    return _stock.cross_entropy(logits, target, None, weight, *options)
