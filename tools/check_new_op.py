#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Carries out CONTRIBUTING's instructions for additions on a copy of the tree, then builds the copy
and runs the tests of what was added.

It adds a dummy op, made from the templates, and the activation of the worked example. This keeps
the templates and the instructions correct. Files that stay as they are cost little: the copy takes
a fifth of a second, the compiler's cache has their objects, and linters and tests leave them out.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree.ElementTree import parse

import new_op
from check_layout import CXX_SUFFIXES
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
SCRIPTS = Path(".venv/bin")
PYTHON = str(SCRIPTS / "python")
CPP_TESTS = "build/cpu/tests/cpp/tfk_tests"
# Tests in these places take every op, or every activation, from a table; to collect all others
# takes as long as to run these.
PYTHON_TESTS = ("bench/test_cases.py", "declared", "docs", "linear", "pointwise", FAMILY)


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


def changed() -> list[Path]:
    """The files of the copy that the tree lacks or has otherwise."""
    trees = ("csrc", "tests", "tools", "transformer_kernels")
    found = [path for tree in trees for path in (SCRATCH / tree).rglob("*") if path.is_file()]
    pairs = [(path, ROOT / path.relative_to(SCRATCH)) for path in found]
    return [path for path, of in pairs if not (of.is_file() and filecmp.cmp(path, of))]


def lint(fix: bool) -> None:
    """Formats what was changed, or refuses it; the rest of the tree is linted where it is."""
    cxx = [str(path) for path in changed() if path.suffix in CXX_SUFFIXES]
    python = [str(path) for path in changed() if path.suffix == ".py"]
    ruff = str(SCRIPTS / "ruff")
    call(str(SCRIPTS / "clang-format"), *(["-i"] if fix else ["--dry-run", "-Werror"]), *cxx)
    call(ruff, "check", "-q", *(["--fix"] if fix else []), *python)
    call(ruff, "format", "-q", *([] if fix else ["--diff"]), *python)


def lay_op() -> None:
    call(PYTHON, "tools/new_op.py", f"{FAMILY}/{OP}")
    give_rank(SCRATCH / "tools" / "check_layout.py")
    make_public(SCRATCH / "transformer_kernels" / "functional.py")
    lint(fix=True)


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
    listed = subprocess.check_output([SCRATCH / CPP_TESTS, "--gtest_list_tests"], text=True)
    if missing := [name for name in names if name not in listed]:
        sys.exit(f"no C++ test has {missing[0]} in its name")
    call(CPP_TESTS, "--gtest_brief=1", f"--gtest_filter={':'.join(f'*{name}*' for name in names)}")


def run_python_tests(*names: str) -> None:
    """Runs the tests of these ops, by name, in one process: to import and to collect takes longer
    than to run them. A name, or a place, without a test fails."""
    report = SCRATCH / "build" / "tests.xml"
    pytest = (PYTHON, "-m", "pytest", "-q", f"--junitxml={report}", "-k", " or ".join(names))
    call(*pytest, *(f"tests/python/{place}" for place in PYTHON_TESTS))
    ran = [f"{case.get('classname')}.{case.get('name')}" for case in parse(report).iter("testcase")]
    places = [place.removesuffix(".py").replace("/", ".") for place in PYTHON_TESTS]
    for wanted in (*names, *(f"tests.python.{place}." for place in places)):
        if not any(wanted in test for test in ran):
            sys.exit(f"no Python test of {' or '.join(names)} has {wanted} in its name")


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
    call(PYTHON, "tools/check_layout.py")
    lint(fix=False)
    call(PYTHON, "tools/build.py", "cpu", "-D", "TFK_ISAS=native")
    run_cpp_tests(new_op.camel(OP), "Activation", "Pointwise")
    run_python_tests(OP, ACTIVATION)
    check_page()


if __name__ == "__main__":
    main()
