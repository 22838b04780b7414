#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails on register spills, and on more kernels than tools/kernel_budget.toml grants.

check_ptxas.py build.log        reads Ninja's log of a build with TFK_PTXAS_VERBOSE; prints kernels
                                by family, and the one with the most registers, by architecture
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Python 3.10 has this module under another name, which pytest installs.
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

BUDGET = Path(__file__).with_name("kernel_budget.toml")
UNIT = re.compile(r"Building CUDA object \S*csrc/(\w+)/")
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Resources:
    name: str
    architecture: str
    family: str = ""  # the kernel's folder in csrc
    spills: int = 0
    registers: int = 0


def parse(log: str) -> list[Resources]:
    kernels: list[Resources] = []
    family = ""
    for line in log.splitlines():
        if match := UNIT.search(line):
            family = match[1]
        elif match := ENTRY.search(line):
            kernels.append(Resources(match[1], match[2], family))
        elif not kernels:
            continue
        elif match := FRAME.search(line):
            kernels[-1].spills += int(match[2]) + int(match[3])
        elif match := REGISTERS.search(line):
            kernels[-1].registers = int(match[1])
    return kernels


def readable(name: str) -> str:
    try:
        answer = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return name
    return answer.stdout.strip()


def room_of(kernel: Resources, budget: Mapping[str, Mapping[str, Any]]) -> str:
    """The entry of the budget that a kernel counts for: its family's, or that of an engine whose
    namespace has a number of its own."""
    engines = (name for name, own in budget.get(kernel.family, {}).items() if isinstance(own, dict))
    found = (name for name in engines if f"{len(name)}{name}" in kernel.name)
    return ".".join([kernel.family, *found])


def over_budget(kernels: Sequence[Resources], budget: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describes how the number of kernels breaks the budget; each kernel counts once."""
    kernels = list({kernel.name: kernel for kernel in kernels}.values())
    errors = []
    for family, count in sorted(Counter(room_of(kernel, budget) for kernel in kernels).items()):
        name, _, engine = family.partition(".")
        own = budget.get(name, {}).get(engine) if engine else budget.get(name)
        if own is None:
            errors.append(
                f"{family or 'unknown'}: {count} kernels, expected a family with a budget"
            )
        elif "kernels" in own:
            if count > int(own["kernels"]):
                errors.append(f"{family}: {count} kernels, expected at most {own['kernels']}")
        else:
            names = [readable(kernel.name) for kernel in kernels if kernel.family == family]
            found = (re.search(str(own["op"]), name) for name in names)
            ops = Counter(match[1] if match else "common" for match in found)
            errors += [
                f"{family}: {op} has {many} kernels, expected at most {own['kernels_per_op']}"
                for op, many in sorted(ops.items())
                if many > int(own["kernels_per_op"])
            ]
    return errors


def main() -> int:
    kernels = parse(Path(sys.argv[1]).read_text())
    budget = toml.loads(BUDGET.read_text())
    if not kernels:
        print("[ptxas] the log names no kernel, expected a build with TFK_PTXAS_VERBOSE=ON")
        return 1
    for architecture in sorted({kernel.architecture for kernel in kernels}):
        own = [kernel for kernel in kernels if kernel.architecture == architecture]
        most = max(own, key=lambda kernel: kernel.registers)
        families = Counter(kernel.family for kernel in own)
        counts = ", ".join(f"{family} {count}" for family, count in sorted(families.items()))
        print(
            f"[ptxas] {architecture}: {len(own)} kernels ({counts}), at most {most.registers} "
            f"registers ({readable(most.name)})"
        )
    errors = over_budget(kernels, budget)
    errors += [
        f"{kernel.architecture} {readable(kernel.name)}: {kernel.spills} bytes spilled, "
        "expected none"
        for kernel in kernels
        if kernel.spills
    ]
    for error in errors:
        print(f"[ptxas] {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
