# SPDX-License-Identifier: MIT
"""Ends a rung for CUDA with status 77 where there is no card, before it imports what takes long."""

from __future__ import annotations

import ctypes
import sys


def count() -> int:
    """The cards that the driver knows."""
    number = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0
    return number.value if works else 0


if count() == 0:
    print("there is no CUDA card")
    sys.exit(77)

import torch  # noqa: E402  # takes seconds

if not torch.cuda.is_available():
    print("this PyTorch has no CUDA")
    sys.exit(77)
