#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lay a dummy op in a copy of the tree, build the copy and run the op's tests there.

Templates that nothing builds would rot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import new_op
from setup_env import ROOT

FAMILY, OP = "probe", "pass_through"
SCRATCH = ROOT / "build" / "new_op"
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*_cache", ".git", ".hypothesis", ".venv", "build", "dist", "lib", "shared"
)


def call(*command: str) -> None:
    print(f"[new_op] {' '.join(command)}", flush=True)
    # Relative to the copy, its sources are those that the compiler's cache knows.
    environment = {**os.environ, "CCACHE_BASEDIR": str(SCRATCH)}
    if subprocess.run(command, cwd=SCRATCH, env=environment, check=False).returncode != 0:
        sys.exit(1)


def give_rank(layout: Path) -> None:
    """A family is named where its rank is."""
    text = layout.read_text()
    layout.write_text(text.replace("FAMILY_RANKS = {", f'FAMILY_RANKS = {{"{FAMILY}": 1,'))


def make_public(names: Path) -> None:
    """The one edited line, where it belongs in the alphabet."""
    lines = names.read_text().splitlines(keepends=True)
    line = f"{new_op.public_line(FAMILY, OP)}\n"
    place = next(
        i for i, other in enumerate(lines) if other.startswith("from .ops") and other > line
    )
    names.write_text("".join([*lines[:place], line, *lines[place:]]))


def main() -> None:
    shutil.rmtree(SCRATCH, ignore_errors=True)
    shutil.copytree(ROOT, SCRATCH, ignore=LEFT_OUT)
    (SCRATCH / ".venv").symlink_to(ROOT / ".venv")
    python = ".venv/bin/python"
    call(python, "tools/new_op.py", f"{FAMILY}/{OP}")
    give_rank(SCRATCH / "tools" / "check_layout.py")
    make_public(SCRATCH / "transformer_kernels" / "functional.py")
    call(python, "tools/lint.py", "--fix")
    call(python, "tools/lint.py", "layout", "ruff")
    call(python, "tools/build.py", "cpu", "-D", "TFK_ISAS=native")
    call("build/cpu/tests/cpp/tfk_tests", f"--gtest_filter=*{new_op.camel(OP)}*")
    call(python, "-m", "pytest", "-q", f"tests/python/{FAMILY}")


if __name__ == "__main__":
    main()
