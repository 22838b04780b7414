# SPDX-License-Identifier: MIT
"""The dtypes of arithmetic: accumulation, and autocast."""

from typing import Any

import torch

LOWERED = (torch.float32, torch.float16, torch.bfloat16)


def accumulate_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def under_autocast(device: str, *values: Any) -> tuple[Any, ...]:
    """Casts tensors as autocast does for PyTorch's matrix products: all to the lower dtype, except
    float64."""
    if not torch.is_autocast_enabled(device):
        return values
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in LOWERED else x for x in values
    )
