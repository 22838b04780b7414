#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lays out the files of an op with kernels of its own, filled with one that builds, runs and passes
its tests (y = x). An op that its family's engine runs needs none: see CONTRIBUTING.md.

new_op.py optimizer/adamw
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from check_layout import FAMILY_RANKS
from setup_env import ROOT

TEMPLATES = Path(__file__).resolve().parent / "templates"

# Template -> place, in the order in which the files are best filled in.
PLACES = {
    "header.h.in": "csrc/include/transformer_kernels/{family}/{op}.h",
    "cpp_test.cpp.in": "tests/cpp/{family}/{op}_test.cpp",
    "problem.h.in": "csrc/{family}/{own}problem.h",
    "entry.cpp.in": "csrc/{family}/{op}.cpp",
    "cpu.cpp.in": "csrc/{family}/{own}cpu.cpp",
    "cuda.cu.in": "csrc/{family}/{own}cuda.cu",
    "torch.cpp.in": "csrc/torch/{family}/{op}.cpp",
    "op.py.in": "transformer_kernels/ops/{family}/{op}.py",
    "test_op.py.in": "tests/python/{family}/test_{op}.py",
    "bench_case.py.in": "transformer_kernels/bench/cases/{family}_{op}.py",
}
PACKAGE = ("package.py.in", "transformer_kernels/ops/{family}/__init__.py")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def own_prefix(family: str, op: str) -> str:
    """The prefix of an op's files in its family's folder: no name repeats its folder."""
    return "" if op == family else f"{op}_"


def fill(template: str, family: str, op: str) -> str:
    text = (TEMPLATES / template).read_text()
    own = own_prefix(family, op)
    for mark, value in (("@family@", family), ("@own@", own), ("@op@", op), ("@Op@", camel(op))):
        text = text.replace(mark, value)
    return text


def public_line(family: str, op: str) -> str:
    return f"from .ops.{family}.{op} import {op} as {op}"


def lay(root: Path, family: str, op: str) -> list[str]:
    """Writes the files; raises FileExistsError, with nothing written, where one exists."""
    own = own_prefix(family, op)
    places = {
        template: place.format(family=family, op=op, own=own) for template, place in PLACES.items()
    }
    taken = [place for place in places.values() if (root / place).exists()]
    if taken:
        raise FileExistsError(f"{taken[0]} exists, expected a new op")
    template, package = PACKAGE[0], PACKAGE[1].format(family=family)
    if not (root / package).exists():
        places[template] = package
    for template, place in places.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(fill(template, family, op))
    return list(places.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Lay the files of a new op.")
    parser.add_argument("key", help="<family>/<op>, for instance optimizer/adamw")
    key = parser.parse_args().key
    family, _, op = key.partition("/")
    if not (NAME.fullmatch(family) and NAME.fullmatch(op)):
        print(f"new_op: key is {key!r}, expected <family>/<op> in snake_case", file=sys.stderr)
        return 1
    try:
        laid = lay(ROOT, family, op)
    except FileExistsError as error:
        print(f"new_op: {error}", file=sys.stderr)
        return 1
    print("Laid:", *(f"  {place}" for place in laid), sep="\n")
    print(f"Add to transformer_kernels/functional.py:\n  {public_line(family, op)}")
    if family not in FAMILY_RANKS:
        print(f"Give {family} a rank in tools/check_layout.py, FAMILY_RANKS.")
    print("Then `make format`: line breaks depend on the length of the names.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
