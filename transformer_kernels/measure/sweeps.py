# SPDX-License-Identifier: MIT
"""Named sweeps of shapes: M rows (batch times sequence) and N columns, or an op's own sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, starmap

import torch

Shape = tuple[int, ...]
Sweep = Callable[[torch.device, torch.dtype], list[Shape]]
# Takes the size of the batch, the length of the sequences and the model's width.
OfModel = Callable[[int, int, int], Shape]


@dataclass(frozen=True)
class Grid:
    """The shapes that an op can be measured at."""

    forms: str  # examples of a valid shape, for error messages
    fold: Callable[[Shape], Shape | None]  # the given sizes as a shape; None where they are not one
    sweeps: Mapping[str, Sweep]
    of_model: OfModel | None = None  # None where an op has no such sizes

    def shapes_of_models(
        self, batches: Sequence[int], lengths: Sequence[int], widths: Sequence[int]
    ) -> list[Shape]:
        """The shapes that an op has in models of these sizes, in all combinations."""
        assert self.of_model is not None
        return list(dict.fromkeys(starmap(self.of_model, product(batches, lengths, widths))))

    def shapes_of(
        self, names: Sequence[str], device: torch.device, dtype: torch.dtype
    ) -> list[Shape]:
        """The shapes of these sweeps, without repetition."""
        return list(dict.fromkeys(s for name in names for s in self.sweeps[name](device, dtype)))

    def parse(self, text: str) -> list[Shape]:
        """Reads shapes such as `2048x768,8192x768`."""
        return [self._parse(part.strip()) for part in text.split(",")]

    def _parse(self, part: str) -> Shape:
        is_shape = re.fullmatch(r"\d+(x\d+)+", part)
        shape = self.fold(tuple(int(size) for size in part.split("x"))) if is_shape else None
        if shape is None:
            raise ValueError(f"shape is {part!r}, expected a form like {self.forms}")
        return shape


def of_rows(columns: Callable[[int], Shape]) -> OfModel:
    """The shape of an op over the rows of all sequences: their number, and columns by width."""
    return lambda batch, length, width: (batch * length, *columns(width))


def of_heads(batch: int, length: int, width: int) -> Shape:
    """The shape of an op on heads of 64.

    Raises:
        ValueError: the heads do not divide the width.
    """
    if width % _HEAD_DIM:
        raise ValueError(f"the hidden size is {width}, expected a multiple of {_HEAD_DIM}")
    return batch, length, width // _HEAD_DIM, _HEAD_DIM


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


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
_HEAD_DIM = 64
_BATCHES, _SEQUENCES, _HIDDEN = (8, 32, 128), (512, 2048, 8192), (768, 1024, 4096)


def _quick(device: torch.device, _: torch.dtype) -> list[Shape]:
    return list(_QUICK[device.type])


def _headline(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    """On a GPU, every dtype has as many bytes."""
    if device.type == "cpu":
        return list(_WIDE_CPU)
    narrowing = torch.bfloat16.itemsize
    return [(rows * narrowing // dtype.itemsize, columns) for rows, columns in _WIDE_GPU]


def _small(*_: object) -> list[Shape]:
    return [(rows, columns) for rows in _SMALL_ROWS for columns in _SMALL_COLUMNS]


def _full(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    rows = sorted({batch * sequence for batch in _BATCHES for sequence in _SEQUENCES})
    return [(m, n) for m in rows for n in _HIDDEN] + _headline(device, dtype)


def _rows_and_columns(sizes: Shape) -> Shape:
    """Two sizes; of more, the leading ones (batch, sequence, ...) are multiplied."""
    return math.prod(sizes[:-1]), sizes[-1]


ROWS = Grid(
    forms="8192x768 or 8x1024x768",
    fold=_rows_and_columns,
    sweeps={"quick": _quick, "headline": _headline, "small": _small, "full": _full},
    of_model=of_rows(lambda width: (width,)),
)
SWEEPS = tuple(ROWS.sweeps)  # every grid has the same names
