# SPDX-License-Identifier: MIT
"""The processor's name, and the instruction sets that our kernels use on it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

from . import _library

_CPUINFO = Path("/proc/cpuinfo")


def cpuinfo() -> str:
    """The text of /proc/cpuinfo; "" where there is no such file."""
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_name() -> str:
    match = re.search(r"model name\s*:\s*(.+)", cpuinfo())
    name = match.group(1) if match else platform.processor() or platform.machine()
    return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)", "", name)).strip()


def cpu_instruction_sets() -> list[str]:
    """The instruction set that the kernels use, then all that they could use; [""] without a
    library."""
    if not _library.has_kernels:
        return [""]
    text = torch.ops.transformer_kernels.cpu_instruction_sets()
    return bytes(text.tolist()).decode().splitlines()
