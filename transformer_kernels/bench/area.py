# SPDX-License-Identifier: MIT
"""Area and clock of the FPGA array: the table of what `make fpga` placed and routed."""

from __future__ import annotations

from transformer_kernels.measure.schema import AreaRow, Result
from transformer_kernels.measure.table import ABSENT, box

_HEADINGS = [
    ("Set", 14),
    ("Part", 18),
    ("logic cells", 11),
    ("registers", 9),
    ("multipliers", 11),
    ("memories", 8),
    ("clock, MHz", 10),
]


def render(result: Result) -> str:
    """One line per set and part: the resources used, of those that the part has, and the clock."""
    subtitle = "used / on the part; clock by static timing analysis, no board measured"
    body = [_cells(row) for row in result.area]
    return box("FPGA ARRAY, PLACED AND ROUTED", subtitle, _HEADINGS, body)


def provenance(result: Result) -> str:
    """The versions, seed and date that the figures were made with."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
    seeds = ", ".join(sorted({str(row.seed) for row in result.area}))
    return f"Placed and routed {result.date} with {versions}; seed {seeds}."


def _cells(row: AreaRow) -> list[str]:
    return [
        row.set,
        row.title,
        _share(row.logic, row.logic_available),
        str(row.registers),
        _share(row.dsp, row.dsp_available),
        _share(row.ram, row.ram_available),
        f"{row.mhz:.1f}",
    ]


def _share(used: int, available: int) -> str:
    return f"{used} / {available}" if available else ABSENT
