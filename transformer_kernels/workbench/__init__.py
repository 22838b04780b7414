# SPDX-License-Identifier: MIT
"""A workbench for models and kernels: devices, memory by op, checks of every layer, and your own
kernels.

>>> model, x = tfk.nn.MLP(64, 256), torch.randn(8, 64)
>>> with tfk.workbench.account_memory(model) as account:
...     model(x).sum().backward()
>>> bool(tfk.validate(model, x, gradients=True))
True

Modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import attributes

if TYPE_CHECKING:
    from . import arguments
    from ._validate import Report, validate
    from .device import DeviceProperties, choose_device, devices, properties, synchronize
    from .faults import Expected, Fault, FaultError
    from .hooks import ModuleChecks
    from .kernel import Kernel
    from .memory import MemoryAccount, OpMemory, account_memory

_HOMES = {
    "arguments": ("arguments",),
    "device": ("DeviceProperties", "choose_device", "devices", "properties", "synchronize"),
    "faults": ("Expected", "Fault", "FaultError"),
    "hooks": ("ModuleChecks",),
    "kernel": ("Kernel",),
    "memory": ("MemoryAccount", "OpMemory", "account_memory"),
    "_validate": ("Report", "validate"),
}

__all__ = [
    "DeviceProperties",
    "Expected",
    "Fault",
    "FaultError",
    "Kernel",
    "MemoryAccount",
    "ModuleChecks",
    "OpMemory",
    "Report",
    "account_memory",
    "arguments",
    "choose_device",
    "devices",
    "properties",
    "synchronize",
    "validate",
]


__getattr__, __dir__ = attributes(__name__, _HOMES)
