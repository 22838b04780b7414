# SPDX-License-Identifier: MIT
"""Shapes by name. A shape is M rows of N columns; M is batch times sequence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import torch

Shape = tuple[int, int]

_WIDE_GPU = (
    (65536, 768),
    (65536, 1024),
    (32768, 4096),
    (16384, 8192),
    (8192, 16384),
    (4096, 32768),
    (1024, 131072),
)
_WIDE_CPU = ((2048, 768), (8192, 768), (16384, 4096))
_QUICK = {
    "cuda": ((8192, 1024), (32768, 4096), (4096, 32768)),
    "cpu": ((512, 768), (2048, 768), (2048, 4096)),
}
_SMALL_ROWS, _SMALL_COLUMNS = (1, 32, 256, 1024), (768, 4096, 16384)
_BATCHES, _SEQUENCES, _HIDDEN = (8, 32, 128), (512, 2048, 8192), (768, 1024, 4096)


def shapes_of(names: Sequence[str], device: torch.device, dtype: torch.dtype) -> list[Shape]:
    """The shapes of these sweeps, each once."""
    return list(dict.fromkeys(s for name in names for s in _SWEEPS[name](device, dtype)))


def _quick(device: torch.device, _: torch.dtype) -> list[Shape]:
    return list(_QUICK[device.type])


def _headline(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    """On a GPU, as many bytes in every dtype."""
    if device.type == "cpu":
        return list(_WIDE_CPU)
    narrowing = torch.bfloat16.itemsize
    return [(rows * narrowing // dtype.itemsize, columns) for rows, columns in _WIDE_GPU]


def _small(*_: object) -> list[Shape]:
    return [(rows, columns) for rows in _SMALL_ROWS for columns in _SMALL_COLUMNS]


def _full(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    rows = sorted({batch * sequence for batch in _BATCHES for sequence in _SEQUENCES})
    return [(m, n) for m in rows for n in _HIDDEN] + _headline(device, dtype)


_SWEEPS: dict[str, Callable[[torch.device, torch.dtype], list[Shape]]] = {
    "quick": _quick,
    "headline": _headline,
    "small": _small,
    "full": _full,
}
SWEEPS = tuple(_SWEEPS)


def parse_shapes(text: str) -> list[Shape]:
    """`2048x768,8192x768`; more than two sizes are batch, sequence, ..., hidden."""
    shapes = []
    for part in text.split(","):
        if not re.fullmatch(r"\d+(x\d+)+", part.strip()):
            raise ValueError(f"shape is {part!r}, expected a form like 8192x768 or 8x1024x768")
        *leading, columns = (int(size) for size in part.strip().split("x"))
        shapes.append((math.prod(leading), columns))
    return shapes
