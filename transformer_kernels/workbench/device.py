# SPDX-License-Identifier: MIT
"""The devices of this machine, and what the library runs on each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import _library
from .._errors import ArgumentTypeError, ArgumentValueError, as_integer
from .._processor import cpu_instruction_sets
from ..info import info
from ..measure import machine


@dataclass(frozen=True)
class DeviceProperties:
    """One device; ``str()`` gives it as one line."""

    device: torch.device
    name: str
    units: int  # CPU cores that the process may use, or multiprocessors of a GPU
    memory_bytes: int  # memory of the device; 0 where PyTorch does not know it
    instruction_sets: tuple[str, ...]  # of the CPU that our kernels know, best last; or ("sm_90",)
    in_use: str  # the instruction set that our kernels use; "" where formulas run
    backends: tuple[str, ...]  # allowed values of ``backend=`` there

    @property
    def has_kernels(self) -> bool:
        """Whether ``backend="auto"`` runs kernels there, and not formulas in PyTorch."""
        return bool(self.in_use)

    @property
    def runs(self) -> str:
        """A description of what ``backend="auto"`` runs there."""
        return f"kernels ({self.in_use})" if self.has_kernels else "PyTorch formulas"

    def __str__(self) -> str:
        units = "cores" if self.device.type == "cpu" else "units"
        memory = f", {self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else ""
        return f"{self.device}: {self.name}, {self.units} {units}{memory}; runs {self.runs}"


def devices() -> tuple[DeviceProperties, ...]:
    """The CPU, all CUDA devices, and the devices of another accelerator that PyTorch supports.

    >>> tfk.workbench.devices()[0].device
    device(type='cpu')
    """
    found = [torch.device("cpu")]
    found += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    other = _other_accelerator()
    if other is not None:
        found += [torch.device(other, i) for i in range(torch.accelerator.device_count())]
    return tuple(properties(device) for device in found)


def properties(device: torch.device | str | int | None = None) -> DeviceProperties:
    """The properties of one device, by default of the one that new tensors are made on.

    Raises:
        ArgumentValueError, ArgumentTypeError: ``device`` is no device, or none of this machine.

    >>> tfk.workbench.properties("cpu").backends[-1]
    'reference'
    """
    found = _checked(device)
    if found.type == "cpu":
        return _cpu(found)
    return _cuda(found) if found.type == "cuda" else _other(found)


def choose_device(memory_bytes: int = 0) -> torch.device:
    """Returns the CUDA device with the most free memory that our kernels serve, or the CPU where
    none has ``memory_bytes`` free.

    Raises:
        ArgumentValueError: neither has that much free memory.

    >>> device = tfk.workbench.choose_device(memory_bytes=2**20)
    >>> device.type in ("cpu", "cuda")
    True
    """
    wanted = as_integer("choose_device", "memory_bytes", memory_bytes)
    served = [d.device for d in devices() if d.device.type == "cuda" and d.has_kernels]
    free = {device: machine.free_memory_bytes(device) for device in served}
    best = max(served, key=lambda device: free[device], default=None)
    if best is not None and free[best] >= wanted:
        return best
    cpu = torch.device("cpu")
    if (most := machine.free_memory_bytes(cpu)) < wanted:
        raise ArgumentValueError(
            f"choose_device: memory_bytes is {wanted}, expected at most {most} (free on the CPU)"
        )
    return cpu


def synchronize(device: torch.device | str | int | None = None) -> None:
    """Waits for all work that was started on a device; a CPU has always finished.

    Args:
        device: by default the one that new tensors are made on.

    >>> tfk.workbench.synchronize("cpu")
    """
    found = _checked(device)
    if found.type != "cpu":
        torch.accelerator.synchronize(found)


def _checked(device: torch.device | str | int | None) -> torch.device:
    try:
        found = torch.get_default_device() if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        kind = ArgumentValueError if isinstance(device, (str, int)) else ArgumentTypeError
        raise kind(f"properties: device is {device!r}, expected a device of PyTorch") from error
    if found.type == "cpu":
        return torch.device("cpu")
    present = torch.cuda.device_count() if found.type == "cuda" else _count(found.type)
    index = found.index or 0
    if index >= present:
        raise ArgumentValueError(
            f"properties: device is {str(found)!r}, expected one of {present} of that type here"
        )
    return torch.device(found.type, index)


def _count(kind: str) -> int:
    return torch.accelerator.device_count() if kind == _other_accelerator() else 0


def _other_accelerator() -> str | None:
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None or found.type == "cuda" else found.type


def _cpu(device: torch.device) -> DeviceProperties:
    in_use, *sets = cpu_instruction_sets()
    described = machine.describe_machine(device)
    return DeviceProperties(
        device=device,
        name=described.cpu_name,
        units=described.cores,
        memory_bytes=machine.device_memory_bytes(device),
        instruction_sets=tuple(sets),
        in_use=in_use,
        backends=tuple(name for name in info().backends if name != "cuda"),
    )


def _cuda(device: torch.device) -> DeviceProperties:
    found = torch.cuda.get_device_properties(device)
    architecture = f"sm_{found.major}{found.minor}"
    return DeviceProperties(
        device=device,
        name=found.name,
        units=found.multi_processor_count,
        memory_bytes=machine.device_memory_bytes(device),
        instruction_sets=(architecture,),
        in_use=architecture if _library.has_cuda_kernels else "",
        backends=tuple(name for name in info().backends if name not in ("cpu", "fpga")),
    )


def _other(device: torch.device) -> DeviceProperties:
    """Describes an accelerator without kernels of ours, from its module of PyTorch."""
    module = torch.get_device_module(device)
    ask = getattr(module, "get_device_properties", None)
    found = None if ask is None else ask(device)
    units = ("gpu_subslice_count", "multi_processor_count", "max_compute_units")
    return DeviceProperties(
        device=device,
        name=str(getattr(found, "name", device.type)),
        units=next((int(getattr(found, name)) for name in units if hasattr(found, name)), 0),
        memory_bytes=int(getattr(found, "total_memory", 0)),
        instruction_sets=(),
        in_use="",
        backends=("reference",),
    )
