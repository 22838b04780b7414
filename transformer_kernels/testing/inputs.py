# SPDX-License-Identifier: MIT
"""Random inputs in every memory layout, and poisoned memory that shows reads of unwritten
values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_MOST_DRAWN_ON_CPU = 2**26


def randn(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str | None = None,
    mean: float = 0.0,
) -> Tensor:
    """Draws normal values, on the default device unless another is named.

    They are drawn in float64 on the CPU, so that every device gets the same values; a very large
    tensor is drawn on the device itself.
    """
    where = device or torch.get_default_device()
    if math.prod(shape) > _MOST_DRAWN_ON_CPU:
        return torch.randn(*shape, dtype=dtype, device=where) + mean
    drawn = torch.randn(*shape, dtype=torch.float64, device="cpu") + mean
    return drawn.to(dtype).to(where)


def _strided(x: Tensor) -> Tensor:
    """Rows with a gap of NaN between them."""
    *leading, cols = x.shape
    wide = torch.full((*leading, cols + 5), torch.nan, dtype=x.dtype, device=x.device)
    wide[..., 2 : 2 + cols] = x
    return wide[..., 2 : 2 + cols]


def _offset(x: Tensor) -> Tensor:
    """Contiguous between NaN, at an address that is aligned to the element size only."""
    buffer = torch.full((x.numel() + 18,), torch.nan, dtype=x.dtype, device=x.device)
    view = buffer[1 : 1 + x.numel()].view(x.shape)
    view.copy_(x)
    return view


def _transposed(x: Tensor) -> Tensor:
    """Columns are contiguous instead of rows."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() > 1 else x


def _expanded(x: Tensor) -> Tensor:
    """The first row, repeated by a stride of 0."""
    return x[..., :1, :].expand(x.shape) if x.dim() > 1 else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "strided": _strided,
    "offset": _offset,
    "transposed": _transposed,
    "expanded": _expanded,
}


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fills fresh memory of PyTorch's allocators with NaN inside the context."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        settings.fill_uninitialized_memory = fill
