# SPDX-License-Identifier: MIT
"""The array behind ``backend="fpga"``: which one it is, and what has been spent on it.

``TFK_FPGA_ARRAY`` names a parameter set, as ``r4c16d64n1024``; by default it is the set of the
smallest head dim that fits. ``TFK_FPGA_TRANSPORT`` says what carries commands to it: ``model`` (the
default: the bit-exact model), ``simulation`` (the Verilated RTL, from the folder that
``TFK_FPGA_SIMULATION`` names) or ``stream:PATH`` (a board, or what speaks its protocol).

>>> with tfk.fpga.count() as spent:
...     tfk.functional.attention(q, k, v, backend="fpga")
>>> spent.cycles, spent.utilization
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch

from ._library import NAMESPACE, has_kernels


@dataclass
class Counters:
    """What arrays were busy with, in the order of the C++ struct."""

    cycles: int = 0
    commands: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    useful: int = 0  # multiplications that results needed
    possible: int = 0  # that the array had time for

    @property
    def utilization(self) -> float:
        """The share of the multipliers' time that results needed."""
        return self.useful / self.possible if self.possible else 0.0


def counters() -> Counters:
    """The sums since the process began, of all arrays."""
    if not has_kernels:
        return Counters()
    return Counters(*getattr(torch.ops, NAMESPACE).fpga_counters().tolist())


@contextmanager
def count() -> Iterator[Counters]:
    """Counters of the calls within, which are there when it ends."""
    spent, before = Counters(), counters()
    try:
        yield spent
    finally:
        after = counters()
        for field in fields(Counters):
            setattr(spent, field.name, getattr(after, field.name) - getattr(before, field.name))
