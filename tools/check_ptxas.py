#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fail on any register spill in the log of a build with TFK_PTXAS_VERBOSE.

check_ptxas.py build.log        prints the kernel with the most registers of each architecture
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Resources:
    name: str
    architecture: str
    spills: int = 0
    registers: int = 0


def parse(log: str) -> list[Resources]:
    kernels: list[Resources] = []
    for line in log.splitlines():
        if match := ENTRY.search(line):
            kernels.append(Resources(match[1], match[2]))
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


def main() -> int:
    kernels = parse(Path(sys.argv[1]).read_text())
    if not kernels:
        print("[ptxas] the log names no kernel, expected a build with TFK_PTXAS_VERBOSE=ON")
        return 1
    for architecture in sorted({kernel.architecture for kernel in kernels}):
        own = [kernel for kernel in kernels if kernel.architecture == architecture]
        most = max(own, key=lambda kernel: kernel.registers)
        print(
            f"[ptxas] {architecture}: {len(own)} kernels, at most {most.registers} registers "
            f"({readable(most.name)})"
        )
    spilling = [kernel for kernel in kernels if kernel.spills]
    for kernel in spilling:
        print(
            f"[ptxas] {kernel.architecture} {readable(kernel.name)}: "
            f"{kernel.spills} bytes spilled, expected none"
        )
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
