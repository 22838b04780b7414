# SPDX-License-Identifier: MIT
"""The dtype that the arithmetic is in."""

import torch


def accumulate_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32
