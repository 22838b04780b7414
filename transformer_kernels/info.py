# SPDX-License-Identifier: MIT
"""``transformer_kernels.info()`` describes this installation: versions, devices and backends."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass

import torch

from . import _library
from ._version import __version__


@dataclass(frozen=True)
class Info:
    """Versions, devices and backends of an installation; ``str()`` gives one line for each."""

    version: str
    python: str
    torch: str
    library: str
    library_loaded: bool
    cpu: str
    cuda_devices: tuple[str, ...]
    triton: str | None
    backends: tuple[str, ...]
    environment: dict[str, str]

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
        lines = {
            "transformer_kernels": self.version,
            "python": self.python,
            "torch": self.torch,
            "library": self.library,
            "cpu": self.cpu,
            "cuda devices": ", ".join(self.cuda_devices) or "none",
            "triton": self.triton or "not installed",
            "backends": ", ".join(self.backends),
            "environment": settings or "no TFK_* variable set",
        }
        return "\n".join(f"{name:<20}{value}" for name, value in lines.items())


def _cuda_devices() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(
        "{} (sm_{}{})".format(torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i))
        for i in range(torch.cuda.device_count())
    )


def _backends(has_cuda: bool, has_triton: bool) -> tuple[str, ...]:
    available = {
        "cpu": _library.has_kernels,
        "cuda": _library.has_cuda_kernels and has_cuda,
        "triton": has_triton and (has_cuda or os.environ.get("TRITON_INTERPRET") == "1"),
        "fpga": _library.has_kernels,
        "reference": True,
    }
    return tuple(name for name, usable in available.items() if usable)


def _triton_version() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.metadata.version("triton")


def info() -> Info:
    """Describes this installation: versions, devices, and whether the native library is in use.

    >>> tfk.info().torch == torch.__version__
    True
    """
    loaded = _library.missing_reason is None
    devices, triton = _cuda_devices(), _triton_version()
    return Info(
        version=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        library=str(_library.library_path()) if loaded else f"absent: {_library.missing_reason}",
        library_loaded=loaded,
        cpu=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()},"
        f" {torch.get_num_threads()} threads",
        cuda_devices=devices,
        triton=triton,
        backends=_backends(bool(devices), triton is not None),
        environment={k: v for k, v in sorted(os.environ.items()) if k.startswith("TFK_")},
    )
