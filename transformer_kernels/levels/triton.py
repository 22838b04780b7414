# SPDX-License-Identifier: MIT
"""Level 4: the fused block through kernels written by hand in Triton.

What it saves over level 3 is the compiler: what is one pass is said by the author, forward and
backward, and stays so with every size and every version; for another number of tokens a kernel may
be compiled again, the block is not; attention is a kernel of its own layout, and not a library's.
Triton still decides which thread holds what, and Python launches every kernel.

Without a GPU Triton's interpreter runs the same kernels in NumPy: right, and too slow to time.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from . import fused
from ._level import Level, Weights


class Triton(Level):
    name = "triton"
    title = "Triton"
    hides = "Triton's launches are no operators"

    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        return fused.block(x, w, num_heads, causal, eps, backend="triton")

    def why_absent(self, device: torch.device) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "runs on a GPU, or with TRITON_INTERPRET=1 through Triton's interpreter"

    def why_untimed(self, device: torch.device) -> str | None:
        return None if device.type == "cuda" else "run by Triton's interpreter, for its results"
