# SPDX-License-Identifier: MIT
"""The machine and the versions that a figure was measured with."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from transformer_kernels._processor import cpu_name
from transformer_kernels.measure.schema import SCHEMA_VERSION, Machine, Result

_PACKAGES = (
    "transformer-kernels",
    "torch",
    "triton",
    "liger_kernel",
    "quack-kernels",
    "fa3_fwd",
    "flash-attn-3",
    "flash-attn-4",
    "torch-geometric",
    "transformers",
)
_FALLBACK_L2_BYTES = 64 << 20


def new_result(device: torch.device, settings: dict[str, str], **measured: Any) -> Result:
    """A result that names this machine, its versions and the present time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return Result(
        schema_version=SCHEMA_VERSION,
        date=now.isoformat(timespec="seconds"),
        machine=describe_machine(device),
        versions=describe_versions(),
        settings=settings,
        **measured,
    )


def describe_machine(device: torch.device) -> Machine:
    is_cuda = device.type == "cuda"
    return Machine(
        device=device.type,
        device_name=device_name(device),
        cpu_name=cpu_name(),
        cores=_usable_cores(),
        memory_gib=round(_memory_bytes() / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        driver=_driver() if is_cuda else None,
        device_memory_gib=round(device_memory_bytes(device) / 2**30, 1) if is_cuda else None,
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_label()


def describe_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    versions |= {name: found for name in _PACKAGES if (found := _installed_version(name))}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions


def l2_bytes(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "L2_cache_size", 0)) or _FALLBACK_L2_BYTES


def device_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return _memory_bytes()


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int | None:
    """The most memory that a call takes beyond what was allocated before it, results included.

    None on a CPU, where PyTorch does not count memory.
    """
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return int(torch.cuda.max_memory_allocated(device)) - before


def free_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    return int(match.group(1)) * 1024 if match else _memory_bytes()


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_label() -> str:
    cores = _usable_cores()
    return f"{cpu_name()}, {cores} core{'s' if cores > 1 else ''}, {_isa()}"


def _isa() -> str:
    return torch.backends.cpu.get_cpu_capability()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return answer.splitlines()[0].strip() if answer else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
