# SPDX-License-Identifier: MIT
"""Chooses Triton's kernels where Triton runs."""

from __future__ import annotations

import os

from torch import Tensor

from .._library import log_dispatch


def backend_for(name: str, x: Tensor) -> str:
    """``"triton"`` on a GPU, and in Triton's interpreter; elsewhere the kernels of the device."""
    if x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1":
        return "triton"
    log_dispatch(f"{name}: triton refused: x is on {x.device}, and TRITON_INTERPRET is not 1")
    return "auto"
