# SPDX-License-Identifier: MIT
"""Level 5: the fused block on this project's C++ and CUDA kernels.

It makes the same passes over memory as level 4, and uses more of the machine: bulk copies and
tensor-core instructions that Triton does not have, a plan of threads and rows for each size,
launches from C++, and on a CPU vector units instead of an interpreter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _library
from . import fused
from ._level import Level, Weights


class Ours(Level):
    name = "ours"
    title = "C++ and CUDA"

    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        # The formula is no level: a device without kernels is an error.
        _library.require_backend("Block", x.device.type, x)
        return fused.block(x, w, num_heads, causal, eps, backend="auto")

    def why_absent(self, device: torch.device) -> str | None:
        if _library.missing_reason is not None:
            return _library.missing_reason
        if device.type == "cpu" or (device.type == "cuda" and _library.has_cuda_kernels):
            return None
        return f"the library in use has no kernels for {device.type}"
