# SPDX-License-Identifier: MIT
"""Level 4: the fused block on kernels written by hand in Triton.

Compared with level 3 it does without the compiler: the author decides what is one pass, forward and
backward, for every size and every version. Another number of tokens may compile a kernel again, but
not the block. Attention is a kernel for the block's own layout instead of a library's. Triton still
decides which thread holds which element, and Python launches every kernel.

Without a GPU, Triton's interpreter runs the same kernels in NumPy: correct, but too slow to time.
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
