#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that objects compiled for one instruction set share no inline code with the rest.

The linker keeps one copy of a weak symbol. If it kept the copy of a source with AVX-512 flags, the
whole library would need AVX-512. So a weak symbol of such an object must belong to the namespace of
its instruction set.

    check_isa_symbols.py [object ...]       (default: those of every build under build/)
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from setup_env import ROOT

# Types in nm's output: weak functions, weak objects, and unique ones (GNU).
SHARED_TYPES = "WwVvu"
OWN = re.compile(r"transformer_kernels::cpu::(scalar|neon|avx2|avx512|avx512_bf16|amx)::")
# Symbols that the compiler's instrumentation (coverage, sanitizers) shares on purpose; they are no
# code.
INSTRUMENTATION = re.compile(r"^(__gcov|__asan|__ubsan|__tsan|__odr_asan|DW\.ref\.)")


def shared_symbols(listing: str) -> Iterator[str]:
    """Names in nm's output that another object may define too; undefined symbols are left out."""
    for line in listing.splitlines():
        match = re.match(r"[0-9a-fA-F]+ (\w) (.+)$", line.strip())
        if match and match[1] in SHARED_TYPES:
            yield match[2]


def foreign_symbols(listing: str) -> list[str]:
    return [
        name
        for name in shared_symbols(listing)
        if not OWN.search(name) and not INSTRUMENTATION.match(name)
    ]


def main(objects: Sequence[str]) -> int:
    paths = [Path(o) for o in objects] or sorted((ROOT / "build").rglob("*_isa.cpp.o"))
    if not paths:
        print("[isa] no object of a source named *_isa.cpp, expected some: build first")
        return 1
    wrong = 0
    for path in paths:
        command = ["nm", "--demangle", str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(f"{path}: {result.stderr.strip()}")
            wrong += 1
            continue
        for name in foreign_symbols(result.stdout):
            print(f"{path}: shares {name}, expected only symbols of its instruction set")
            wrong += 1
    print(f"[isa] {len(paths)} objects, {wrong} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
