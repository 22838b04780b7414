# SPDX-License-Identifier: MIT
"""From how many rows on a site runs our code where it is not timed."""

from __future__ import annotations

import torch

from .derive import Gate

# Measured on one core: forward passes at widths 256 and 768, PyTorch's code beside ours. From so
# many rows on ours is the faster one at both widths, by more than a model takes to find its code in
# the caches; the second number holds where PyTorch's code is several operations, each a call of its
# own.
_CPU = {
    "activation": (128, 1),
    "attention": (64, 64),
    "eager_attention": (32, 32),
    "norm": (64, 1),
    "qk_norm": (256, 256),
    "rope": (128, 128),
    "sum_norm": (256, 64),
}
# Products pay from two rows on where the weight does not stay in the core's own cache.
_CACHED, _PRODUCTS, _CACHED_PRODUCTS = 1 << 18, 2, 128
# Our code takes the host longer to call than PyTorch's, whatever the device gains by few rows.
_CUDA = 32
_FROM_ONE_ON_CUDA = frozenset(("activation", "norm", "rope"))


def usual(pattern: str, device: torch.device, *, calls: int = 1, weight: int = 0) -> Gate:
    """The gate of a site of this pattern where it is not timed.

    Args:
        pattern: its name.
        device: where it runs.
        calls: the number of operations of PyTorch's code.
        weight: the number of elements of the weight, for products.
    """
    if device.type != "cpu":
        return Gate() if pattern in _FROM_ONE_ON_CUDA else Gate(_CUDA)
    if weight:
        return Gate(_PRODUCTS if weight >= _CACHED else _CACHED_PRODUCTS)
    return Gate(_CPU.get(pattern, (1, 1))[calls > 1])
