# SPDX-License-Identifier: MIT
"""Cross-entropy of a linear layer in PyTorch operations, differentiable any number of times. All
logits are in memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._torch import linear
from .._dtype import accumulate_dtype
from ..loss import _formula as loss
from ..loss import _stock
from ._statistics import accuracy_of, entropy_of, reduced


def forward(
    x: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor,
    weight: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float,
    reduction: int, wide: bool, chunk_bytes: int, float32_sums: bool, packed: bool,
    with_entropy: bool, with_accuracy: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Computes the results. ``chunk_bytes``, ``float32_sums`` and ``packed`` change how kernels
    compute them, but not the results."""
    del chunk_bytes, float32_sums, packed
    bias = None if linear_bias is None else linear_bias.to(x.dtype)
    logits = linear(x, linear_weight.to(x.dtype), bias)
    found = loss.forward(
        logits, target, None, weight, ignore_index, label_smoothing, z_loss, softcap, reduction,
        wide,
    )  # fmt: skip
    counted, nothing = target != ignore_index, logits.new_empty(0, dtype=accumulate_dtype(logits))
    entropy = accuracy = nothing
    if with_entropy:
        entropy = reduced(entropy_of(logits, counted, softcap), counted, reduction)
    if with_accuracy:
        accuracy = reduced(accuracy_of(logits, target, counted), counted, reduction)
    return found, entropy, accuracy


def stock(
    x: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor,
    weight: Tensor | None, *numbers: Any,
) -> Tensor:  # fmt: skip
    """In PyTorch's own calls, which hold the logits too."""
    bias = None if linear_bias is None else linear_bias.to(x.dtype)
    logits = linear(x, linear_weight.to(x.dtype), bias)
    options = numbers[:6]
    return _stock.cross_entropy(logits, target, None, weight, *options)
