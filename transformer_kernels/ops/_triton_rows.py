# SPDX-License-Identifier: MIT
"""Tensors as rows for Triton's kernels, and the width of a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# A program keeps a row of up to this many elements in registers. For longer rows it loops over
# chunks of CHUNK elements, and reads the row again in every pass.
WHOLE_ROW = 16384
CHUNK = 8192

_ACCUMULATE = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float32,
    torch.bfloat16: tl.float32,
}


def accumulate_type(x: Tensor) -> tl.dtype:
    return _ACCUMULATE[x.dtype]


def as_rows(x: Tensor) -> tuple[Tensor, int]:
    """``x`` as (rows, cols) with a last stride of 1, copied if needed; and the row stride."""
    rows = x.reshape(x.numel() // x.shape[-1] if x.shape[-1] else 0, x.shape[-1])
    if rows.shape[1] > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def vector(parameter: Tensor | None, x: Tensor) -> Tensor:
    """A parameter of any strides as a kernel reads it, without gaps; without a parameter, memory
    that is not read."""
    return x if parameter is None else parameter.contiguous()


def shape_of(cols: int, limit: int = WHOLE_ROW) -> tuple[int, bool, int]:
    """The block size, whether a block holds a whole row, and the number of warps."""
    whole = cols <= limit
    block = max(triton.next_power_of_2(cols) if whole else min(CHUNK, limit), 16)
    return block, whole, min(max(block // 512, 1), 16)
