# SPDX-License-Identifier: MIT
"""Operands of products under autocast, which are cast once for all layers that read them."""

from __future__ import annotations

import torch
from torch import Tensor

from .._torch import autocasts, is_eager
from .hand import moment

_KEPT = "_tfk_operand"  # the attribute of a tensor that has been cast


def is_lowered(x: Tensor) -> bool:
    """Whether autocast is on, and casts operands of products to the dtype that ``x`` has."""
    return autocasts(x) and torch.get_autocast_dtype(x.device.type) is x.dtype


def cast_once(x: Tensor) -> Tensor:
    """``x`` as autocast casts it for a product.

    PyTorch casts it anew for each layer, keeps a copy for each in training, and adds the gradients
    of all in float32. Here the cast stays with the tensor. It is made anew where the tensor was
    changed since, and where gradients or what watches saved tensors are other ones.
    """
    if x.dtype is not torch.float32 or not autocasts(x) or not is_eager():
        return x
    if x.is_leaf and x.requires_grad:  # its gradient's node refers to it, so the two would stay
        return x
    dtype = torch.get_autocast_dtype(x.device.type)
    now = (dtype, *moment(x))
    kept = getattr(x, _KEPT, None)
    if kept is not None and kept[0] == now:
        found: Tensor = kept[1]
        return found
    made = x.to(dtype)
    setattr(x, _KEPT, (now, made))
    return made
