# SPDX-License-Identifier: MIT
"""Runs linear_act, gated_linear or an MLP as one autograd node; ``recompute`` says which
activations it saves."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..._errors import as_integer
from ..._library import log_dispatch
from ..._torch import any_autocast
from .._declare import Op
from .._kinds import PLAIN_OR_NONE
from ._choice import is_little, leaves_processors_idle, refusal
from ._mlp_ops import GATED_MLP, check_level
from ._weights import as_multiplied, fits


def as_level(op: str, recompute: Any) -> int:
    if recompute == 1 and type(recompute) is int:
        return 1
    level = as_integer(op, "recompute", recompute)
    check_level(op, level)
    return level


def has_gradients(*operands: Tensor | None) -> bool:
    """Whether a gradient of any operand is asked for."""
    if torch.is_grad_enabled():
        for t in operands:
            if isinstance(t, Tensor) and t.requires_grad:
                return True
    return False


def _why_apart(tensors: tuple[Tensor | None, ...], backend: str) -> str | None:
    if backend == "triton":
        return "Triton has no kernel of several layers"
    if not PLAIN_OR_NONE.issuperset(map(type, tensors)):
        return "an operand is more than memory"
    return None


def call_as_one(
    op: Op, title: str, tensors: tuple[Tensor | None, ...], activation: int, level: int,
    backend: str,
) -> Tensor | None:  # fmt: skip
    """Runs the layers as one node. Returns None where each layer has to be called by itself: no
    gradient is asked for (unless a gate is one kernel), Triton runs, a tensor decides itself what a
    layer does, or one is missing or has another dtype, about which the layer raises.
    """
    x, weight, *_, down_weight, _ = tensors
    up_weight = tensors[2] if op is GATED_MLP else None
    if x is None or weight is None or backend == "fpga":
        return None
    trains = has_gradients(*tensors)
    if not trains and not (op is GATED_MLP and isinstance(x, Tensor) and x.is_cuda):
        return None
    apart = _why_apart(tensors, backend)
    if apart is not None:
        log_dispatch(f"{title}: recompute={level} refused: {apart}; each layer keeps its own")
        return None
    weights = [t for t in (weight, up_weight, down_weight) if t is not None]
    packed = backend != "auto" or not (
        is_little(title, x, *weights)
        or refusal(title, x, weight, down_weight, up_weight, activated=True) is not None
    )
    if any_autocast():
        tensors = as_multiplied(
            x, *tensors[1:], masters=True, wide_biases=packed and x.is_cuda
        )  # fmt: skip
    if not fits(*cast("tuple[Tensor, ...]", tensors)):
        return None
    if not trains:
        if not packed or (down_weight is not None and leaves_processors_idle(x, down_weight)):
            return None
        level = 2
    if down_weight is not None and not down_weight.requires_grad:
        level = max(level, 1)  # h is only read for the gradient of that weight
    y: Tensor = op.call(*tensors, activation, level, packed, backend)
    return y
