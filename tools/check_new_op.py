#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Carries out CONTRIBUTING's instructions for additions on a copy of the tree, then builds the copy
and runs the tests of what was added.

It adds a dummy op, made from the templates, and the activation of the worked example. This keeps
the templates and the instructions correct.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree.ElementTree import parse

import new_op
from setup_env import ROOT
from worked_edits import Edit, carry_out, read_edits

FAMILY, OP = "probe", "pass_through"
ACTIVATION = "mish"
HEADING = f"An activation, worked through: {ACTIVATION}"
MOST_LINES, MOST_FILES = 40, 4
SCRATCH = ROOT / "build" / "new_op"
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*_cache", ".git", ".hypothesis", ".venv", "build", "dist", "lib", "shared"
)
PYTHON = ".venv/bin/python"
TESTS = "build/cpu/tests/cpp/tfk_tests"


def call(*command: str) -> None:
    print(f"[new_op] {' '.join(command)}", flush=True)
    # With paths relative to the copy, the compiler's cache recognises its sources.
    environment = {**os.environ, "CCACHE_BASEDIR": str(SCRATCH), "PYTHONPATH": str(SCRATCH)}
    if subprocess.run(command, cwd=SCRATCH, env=environment, check=False).returncode != 0:
        sys.exit(1)


def give_rank(layout: Path) -> None:
    """Gives the family a rank, in the file where ranks are."""
    text = layout.read_text()
    layout.write_text(text.replace("FAMILY_RANKS = {", f'FAMILY_RANKS = {{"{FAMILY}": 1,'))


def make_public(names: Path) -> None:
    """Adds the one line that makes the op public, in alphabetical order."""
    lines = names.read_text().splitlines(keepends=True)
    line = f"{new_op.public_line(FAMILY, OP)}\n"
    place = next(
        i for i, other in enumerate(lines) if other.startswith("from .ops") and other > line
    )
    names.write_text("".join([*lines[:place], line, *lines[place:]]))


def lay_op() -> None:
    call(PYTHON, "tools/new_op.py", f"{FAMILY}/{OP}")
    give_rank(SCRATCH / "tools" / "check_layout.py")
    make_public(SCRATCH / "transformer_kernels" / "functional.py")
    call(PYTHON, "tools/lint.py", "--fix")


def too_many(edits: list[Edit]) -> str | None:
    """Describes how an activation's edits exceed the limits; None where they do not."""
    lines, files = sum(edit.lines for edit in edits), len({edit.path for edit in edits})
    print(f"[new_op] {ACTIVATION}: {lines} edited lines in {files} files")
    if 0 < lines <= MOST_LINES and files <= MOST_FILES:
        return None
    return f"{lines} lines in {files} files, expected 1 to {MOST_LINES} in {MOST_FILES} at most"


def work_activation() -> None:
    edits = read_edits((ROOT / "CONTRIBUTING.md").read_text(), HEADING)
    if excess := too_many(edits):
        sys.exit(f"CONTRIBUTING.md, {HEADING}: {excess}")
    for edit in edits:
        carry_out(edit, SCRATCH)


def run_cpp_tests(*names: str) -> None:
    """Runs C++ tests by name. A name without a test fails here; GoogleTest would succeed."""
    listed = subprocess.check_output([SCRATCH / TESTS, "--gtest_list_tests"], text=True)
    if missing := [name for name in names if name not in listed]:
        sys.exit(f"no C++ test has {missing[0]} in its name")
    call(TESTS, "--gtest_brief=1", f"--gtest_filter={':'.join(f'*{name}*' for name in names)}")


def run_python_tests(*names: str) -> None:
    """Runs the tests of these and of all ops, by name, in one process: to import and to collect
    takes longer than to run them. A name without a test fails."""
    report = SCRATCH / "build" / "tests.xml"
    pytest = (PYTHON, "-m", "pytest", "-q", f"--junitxml={report}")
    call(*pytest, "-k", " or ".join(names), "tests/python")
    ran = [f"{case.get('classname')} {case.get('name')}" for case in parse(report).iter("testcase")]
    if missing := [name for name in names if not any(name in test for test in ran)]:
        sys.exit(f"no Python test has {missing[0]} in its name")


def check_page() -> None:
    call(PYTHON, "tools/render_ops.py")
    page = (SCRATCH / "docs" / "_generated" / "ops_pointwise.md").read_text()
    if f"\n| `{ACTIVATION}` |" not in page:
        sys.exit(f"docs/ops/pointwise.md has no row of {ACTIVATION}")


def main() -> None:
    shutil.rmtree(SCRATCH, ignore_errors=True)
    shutil.copytree(ROOT, SCRATCH, ignore=LEFT_OUT)
    (SCRATCH / ".venv").symlink_to(ROOT / ".venv")
    lay_op()
    work_activation()
    call(PYTHON, "tools/lint.py", "layout", "clang-format", "ruff-format", "ruff")
    call(PYTHON, "tools/build.py", "cpu", "-D", "TFK_ISAS=native")
    run_cpp_tests(new_op.camel(OP), "Activation", "Pointwise")
    run_python_tests(OP, ACTIVATION)
    check_page()


if __name__ == "__main__":
    main()
