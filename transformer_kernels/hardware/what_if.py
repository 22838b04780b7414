# SPDX-License-Identifier: MIT
"""Machines that nobody has built: one number of a machine is changed, and the rest stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from .description import Hardware

Change = Callable[[Hardware], Hardware]

_FASTER: Mapping[str, Change] = {
    "memory": lambda machine: replace(
        machine,
        copy_gbps=machine.copy_gbps * 2,
        copies={size: gbps * 2 for size, gbps in machine.copies.items()},
    ),
    "products": lambda machine: replace(
        machine, products={dtype: rate * 2 for dtype, rate in machine.products.items()}
    ),
    "exponentials": lambda machine: replace(machine, exponentials=machine.exponentials * 2),
    "launches": lambda machine: replace(machine, launch_us=machine.launch_us / 2),
}


def _named(name: str, change: Change, machine: Hardware) -> Hardware:
    return replace(change(machine), name=f"{machine.name}, {name}")


# By name, what makes a machine twice as fast at one thing.
WHAT_IFS: Mapping[str, Change] = {
    f"{what} twice as fast": partial(_named, f"{what} twice as fast", change)
    for what, change in _FASTER.items()
}
