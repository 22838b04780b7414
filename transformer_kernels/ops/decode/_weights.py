# SPDX-License-Identifier: MIT
"""Weights of tokens, which are whole numbers, and draws by them, in PyTorch operations.

Each operation is rounded by itself and has the order of ``csrc/decode/sampling/weights.h``, so that
weights are those of the kernels to the bit, on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._philox import words_at

UNIT = 2.0**40  # a weight of 1
_LOG2_OF_E = 1.0 / math.log(2.0)
_LEAST_EXPONENT = -100.0
_COEFFICIENTS = tuple(
    map(
        float.fromhex,
        ("0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p0"),
    )
)
_LEADING = float.fromhex("0x1.5bba14p-10")
COLDEST, HOTTEST = 2.0**-126, 2.0**126  # temperatures


def exponents(z: Tensor, temperature: Tensor | None = None) -> Tensor:
    """log2 of the weight of each logit (..., V)."""
    top = z.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, torch.inf, top)  # no weight is left then
    scale: Tensor | float = _LOG2_OF_E
    if temperature is not None:
        scale = (_LOG2_OF_E / temperature.double().clamp(COLDEST, HOTTEST)).float()
    x = torch.where(z == top, 0.0, (z - top) * scale)
    return torch.where(x > _LEAST_EXPONENT, x, _LEAST_EXPONENT)


def powers_of_two(x: Tensor) -> Tensor:
    """2^x for float32 from -126 to 127."""
    n = x.round()
    r = x - n
    y = torch.full_like(r, _LEADING)
    for coefficient in _COEFFICIENTS:
        y = y * r
        y = y + coefficient
    return y * ((n.int() + 127) << 23).view(torch.float32)


def unrounded(x: Tensor) -> Tensor:
    """Weights times 2^40, from their logarithms."""
    return powers_of_two(x) * UNIT


def whole(w: Tensor) -> Tensor:
    return w.double().round().long()


def weights_of(rows: Tensor, logits: bool) -> Tensor:
    """Weights (..., V), int64, of logits or of probabilities."""
    rows = rows.float()
    if logits:
        return whole(unrounded(exponents(rows)))
    return whole(torch.where(rows > 0, rows, 0.0).clamp(max=1.0) * UNIT)


def uniform(seed: Tensor, position: Tensor, stream: int) -> Tensor:
    """Numbers of [0, 1), float64, multiples of 2^-53, for each pair of a seed and a position."""
    seed, position = torch.broadcast_tensors(seed, position)
    offset = torch.full((), stream, device=seed.device)
    low, high, _, _ = words_at(seed, position, offset)
    return ((high << 21) | (low >> 11)).double() * 2.0**-53


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """The token (B) on which ``u`` (B) falls, of weights (B, V); -1 where there is no weight."""
    total = weights.sum(-1)
    part = torch.minimum((u * total.double()).long(), total - 1)
    token = (weights.cumsum(-1) <= part.unsqueeze(-1)).sum(-1)
    return torch.where(total == 0, -1, token)
