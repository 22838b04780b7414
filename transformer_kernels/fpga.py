# SPDX-License-Identifier: MIT
"""Chooses the array behind ``backend="fpga"``, and counts the work that it does.

``TFK_FPGA_ARRAY`` names a parameter set, such as ``r4c16d64n1024``; by default the set of the
smallest head dim that fits is used. ``TFK_FPGA_TRANSPORT`` says how commands reach the array:
``model`` (the default, a bit-exact model), ``simulation`` (the Verilated RTL, from the folder that
``TFK_FPGA_SIMULATION`` names) or ``stream:PATH`` (a board, or a program that speaks its protocol).

>>> q, k, v = torch.randn(3, 1, 8, 1, 16)
>>> with tfk.fpga.count() as spent:
...     y = tfk.functional.attention(q, k, v, backend="fpga")
>>> spent.cycles > 0
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch

from ._library import NAMESPACE, has_kernels


@dataclass
class Counters:
    """The work of arrays; the fields have the order of the C++ struct."""

    cycles: int = 0
    commands: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    useful: int = 0  # multiplications that contribute to a result
    possible: int = 0  # multiplications that the array had time for

    @property
    def utilization(self) -> float:
        """The share of the multipliers' time that contributed to results."""
        return self.useful / self.possible if self.possible else 0.0


def counters() -> Counters:
    """The counters of all arrays since the process began."""
    if not has_kernels:
        return Counters()
    return Counters(*getattr(torch.ops, NAMESPACE).fpga_counters().tolist())


@contextmanager
def count() -> Iterator[Counters]:
    """Counts the work of the calls inside. The fields are filled in when the context ends."""
    spent, before = Counters(), counters()
    try:
        yield spent
    finally:
        after = counters()
        for field in fields(Counters):
            setattr(spent, field.name, getattr(after, field.name) - getattr(before, field.name))
