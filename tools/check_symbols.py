#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what a shared library gives to, and takes from, the other libraries of its process.

Both libraries may export the API alone: a template of the standard library that they exported would
stand in for PyTorch's copy of it, or that one for ours. The bindings load into every PyTorch from
2.10 on only if they use nothing of PyTorch but the C functions of the stable ABI, and nothing of
the core but what it exports. A C++ runtime that was linked statically would be a second one in the
process. Every build checks each library that it links.

    check_symbols.py [library ...]          (default: those of transformer_kernels/lib)
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from setup_env import ROOT

CORE = "libtransformer_kernels.so"
BINDINGS = "libtransformer_kernels_torch.so"
LIBRARIES = ROOT / "transformer_kernels" / "lib"

STABLE_C = re.compile(r"^(aoti_torch_|torch_)\w+$")
# libc, libm, libgcc and libstdc++: recognised by version; by name where a library of PyTorch
# defines the same template; or without either.
RUNTIME = re.compile(
    r"@(GLIBC|GLIBCXX|CXXABI|GCC)_|^_Z(T[ISTV])?(N[KRO]*)?St"
    r"|^(_ITM_|__gmon_start__|__cxa_|_Unwind_|__gxx_personality|__tls_get_addr)"
)
# Symbols that a library takes from a shared libstdc++ or libc++.
SHARED_RUNTIME = re.compile(r"@(GLIBCXX|CXXABI)_|^_ZN[KRO]*St3__1")
# The API: functions and members of the namespace, types of exceptions, C functions of the bindings.
API = re.compile(r"^(_Z(T[ISV])?N[KRO]*19transformer_kernels|tfk_\w+$)")


def symbols(library: Path, kind: str, nm: str = "nm") -> list[str]:
    command = [nm, "-D", f"--{kind}-only", str(library)]
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


def stray(defined: Iterable[str]) -> list[str]:
    """Exported symbols that are no part of the API."""
    return [symbol for symbol in defined if not API.match(symbol)]


def has_own_runtime(undefined: Iterable[str]) -> bool:
    """Whether the C++ runtime is inside the library: it needs none of a shared one."""
    return not any(SHARED_RUNTIME.search(symbol) for symbol in undefined)


def check(library: Path, nm: str) -> tuple[str, list[str]]:
    """Returns a summary of a library, and its violations."""
    defined = symbols(library, "defined", nm)
    undefined = symbols(library, "undefined", nm)
    summary = f"{library.name}: {len(defined)} exported"
    wrong = [f"{name}: is exported, expected the API alone" for name in stray(defined)]
    if not defined:
        wrong.append("nothing is exported, expected the API")
    if has_own_runtime(undefined):
        wrong.append("the C++ runtime was linked statically, expected the shared one of PyTorch")
    if library.name == BINDINGS:
        core = symbols(library.with_name(CORE), "defined", nm)
        expected = f"expected one of the stable ABI's, or one that {CORE} exports"
        wrong += [f"{name}: is needed, {expected}" for name in foreign(undefined, {*core})]
        stable = [name for name in undefined if STABLE_C.match(name)]
        summary += f", {len(stable)} C functions of PyTorch needed"
        if not stable:
            wrong.append("no function of PyTorch is used, expected some of the bindings library")
    return summary, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Check what shared libraries export and need.")
    parser.add_argument(
        "libraries", nargs="*", type=Path, default=[LIBRARIES / CORE, LIBRARIES / BINDINGS]
    )
    parser.add_argument("--nm", default="nm", help="default: %(default)s")
    parser.add_argument("--quiet", action="store_true", help="say nothing of what is right")
    arguments = parser.parse_args()
    found = 0
    for library in arguments.libraries:
        summary, wrong = check(library, arguments.nm)
        found += len(wrong)
        if wrong or not arguments.quiet:
            print(f"[symbols] {summary}, {len(wrong)} wrong")
        for line in wrong:
            print(f"[symbols] {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
