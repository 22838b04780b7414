#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks which symbols the bindings library needs from its surroundings.

It loads into every PyTorch from 2.10 on only if it uses nothing of PyTorch except the C functions
of the stable ABI, and nothing of the core except exported symbols.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from setup_env import ROOT

CORE = "libtransformer_kernels.so"
BINDINGS = ROOT / "transformer_kernels" / "lib" / "libtransformer_kernels_torch.so"

STABLE_C = re.compile(r"^(aoti_torch_|torch_)\w+$")
# libc, libm, libgcc and libstdc++: recognised by version; by name where a library of PyTorch
# defines the same template; or without either.
RUNTIME = re.compile(
    r"@(GLIBC|GLIBCXX|CXXABI|GCC)_|^_Z(T[ISTV])?(N[KRO]*)?St"
    r"|^(_ITM_|__gmon_start__|__cxa_|_Unwind_|__gxx_personality|__tls_get_addr)"
)


def symbols(library: Path, kind: str) -> list[str]:
    command = ["nm", "-D", f"--{kind}-only", str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1] for line in lines]


def foreign(undefined: Iterable[str], core: Collection[str]) -> list[str]:
    """Undefined symbols that neither the system's libraries, nor the core, nor the stable ABI
    provides."""
    return [
        symbol
        for symbol in undefined
        if not (RUNTIME.search(symbol) or STABLE_C.match(symbol) or symbol in core)
    ]


def main() -> int:
    library = Path(sys.argv[1]) if len(sys.argv) > 1 else BINDINGS
    undefined = symbols(library, "undefined")
    stable = [symbol for symbol in undefined if STABLE_C.match(symbol)]
    found = foreign(undefined, set(symbols(library.with_name(CORE), "defined")))
    print(f"[symbols] {library.name}: {len(stable)} C functions of PyTorch, {len(found)} foreign")
    for symbol in found:
        print(f"[symbols] {symbol}: expected one of the stable ABI's, or one that {CORE} exports")
    if not stable:
        print("[symbols] no function of PyTorch is used, expected the bindings library")
    return 1 if found or not stable else 0


if __name__ == "__main__":
    sys.exit(main())
