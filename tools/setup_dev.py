#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a checkout ready for development, and says what the machine lacks.

    setup_dev.py            checks the system, makes `.venv`, installs the hooks of git, builds, and
                            asks the built package whether all is well
    setup_dev.py --check    only says what is there and what is missing

`tools/setup_env.py` makes the environment; this is a report around it, for people. The exit status
is 1 where something that the build needs is missing, or where the package does not work.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import setup_env
from build import SCRIPTS, has_nvcc
from dev import has_compose
from setup_env import MANAGERS, OLDEST_PYTHON, ROOT, SetupError, SystemPackage, say

GROUPS = ("run", "lint", "notebook", "tracking")
NEEDED = ("venv", "compiler", "gtest")  # keys of setup_env.system_packages()


@dataclass(frozen=True)
class Finding:
    """One thing that the machine has or lacks, and what a person does about it."""

    what: str
    found: str  # empty: missing
    needed: bool
    remedy: str

    def line(self) -> str:
        if self.found:
            return f"  ok       {self.what}: {self.found}"
        return f"  {'MISSING ' if self.needed else 'optional'} {self.what}: {self.remedy}"


def remedy_of(package: SystemPackage) -> str:
    manager = next((m for m in MANAGERS if shutil.which(m) and m in package.names), None)
    return setup_env.missing_message([package], manager).splitlines()[-1]


def required() -> list[Finding]:
    version = platform.python_version()
    recent = sys.version_info >= OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    python = Finding(
        "Python", version if recent else "", True,
        f"this is {version}, expected at least {oldest}; call make with PYTHON=python3.x",
    )  # fmt: skip
    packages = [setup_env.system_packages()[key] for key in NEEDED]
    return [
        python,
        *(Finding(p.what, "found" if p.present() else "", True, remedy_of(p)) for p in packages),
    ]


OPTIONAL: tuple[tuple[str, Callable[[], object], str], ...] = (
    ("git", lambda: shutil.which("git"), "without it no hooks are installed"),
    ("an NVIDIA driver", setup_env.has_nvidia_driver, "without it the kernels of the CPU run"),
    ("nvcc", has_nvcc, "without it no CUDA kernels are built; CUDA 13 has it"),
    ("ccache", lambda: shutil.which("ccache"), "with it a second build is quick"),
    ("Doxygen", lambda: shutil.which("doxygen"), "make docs needs it"),
    ("Docker with compose", has_compose, "without it make dev and make jupyter use .venv"),
)  # fmt: skip


def findings() -> list[Finding]:
    optional = [Finding(what, "found" if has() else "", False, why) for what, has, why in OPTIONAL]
    return [*required(), *optional]


def install_hooks() -> str:
    """Installs the hooks of .pre-commit-config.yaml; returns why not, or nothing."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return "this is no checkout of git"
    asked = ["git", "config", "--get", "core.hooksPath"]
    if subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0:
        return "core.hooksPath of git is set, and pre-commit leaves its hooks alone"
    command = [str(SCRIPTS / "python"), "-m", "pre_commit", "install"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    return "" if done.returncode == 0 else "pre-commit could not; the lines above say why"


def succeeds(*command: str | Path) -> bool:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode == 0


def set_up() -> list[str]:
    """Makes the environment, the hooks and the libraries; returns what went wrong."""
    setup_env.set_up(GROUPS, NEEDED, ROOT / ".venv", os.environ.get("TORCH", ""))
    if reason := install_hooks():
        say(f"no hooks: {reason}")
    if not succeeds(SCRIPTS / "python", "tools/build.py", "-D", "TFK_TESTS=OFF"):
        return ["the build failed; the lines above say why"]
    if not succeeds(SCRIPTS / "python", "-m", "transformer_kernels", "doctor"):
        return ["transformer-kernels doctor found a problem; its table says which"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make a checkout ready for development.")
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    only_check = parser.parse_args(arguments).check
    problems: list[str] = []
    if not only_check:
        try:
            problems = set_up()
        except SetupError as error:
            problems = [str(error)]
    found = findings()
    print(f"\n{platform.system()} {platform.machine()}:", *(f.line() for f in found), sep="\n")
    problems += [f"{f.what} is missing" for f in found if f.needed and not f.found]
    for problem in problems:
        print(f"[setup] {problem}", file=sys.stderr)
    if not problems:
        say("nothing that the build needs is missing")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
