# SPDX-License-Identifier: MIT
"""A layer and what stands behind it as one node of autograd, which keeps what its level says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentValueError, as_integer
from ..._library import log_dispatch
from ..._torch import any_autocast, is_traced
from .._declare import Op
from .._kinds import PLAIN_CLASSES
from ._choice import refusal
from ._mlp_ops import LEVELS

_LOWERED = (torch.float32, torch.float16, torch.bfloat16)


def as_level(op: str, recompute: Any) -> int:
    level = as_integer(op, "recompute", recompute)
    if level not in LEVELS:
        raise ArgumentValueError(f"{op}: recompute is {level}, expected 0, 1 or 2")
    return level


def _under_autocast(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """What PyTorch's linear does: all in the lower dtype, but for float64."""
    device = next(t for t in tensors if t is not None).device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype not in _LOWERED else t.to(dtype) for t in tensors)


def call_as_one(
    op: Op, title: str, tensors: tuple[Tensor | None, ...], activation: int, level: int,
    backend: str,
) -> Tensor | None:  # fmt: skip
    """The result; None where each layer is called for itself: no gradient is asked for, a graph of
    torch.jit.trace is made, or a tensor is of a kind that decides itself what a layer does."""
    if backend == "fpga" or is_traced() or not torch.is_grad_enabled():
        return None
    if any(t is not None and type(t) not in PLAIN_CLASSES for t in tensors):
        log_dispatch(
            f"{title}: recompute={level} refused: an operand is more than memory; each layer keeps"
            " its own"
        )
        return None
    if not any(t is not None and t.requires_grad for t in tensors):
        return None
    if any_autocast():
        tensors = _under_autocast(tensors)
    x, weight, *_, down_weight, _ = tensors
    assert x is not None
    assert weight is not None
    packed = backend != "auto" or refusal(title, x, weight) is None
    if down_weight is not None and not down_weight.requires_grad:
        level = max(level, 1)  # nothing reads h but the gradient of that weight
    y: Tensor = op.call(*tensors, activation, level, packed, backend)
    return y
