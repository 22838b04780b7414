#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes requirements.txt and environment.yml from pyproject.toml; --check says where they differ.

Both name what the package, its examples and its notebooks need. Conda brings the interpreter and
the tools of a build, pip the Python packages, so that both ways lead to the same versions.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from setup_env import ROOT

EXTRAS = ("bench", "demo", "examples", "notebook", "profile")
BUILD_TOOLS = ("cmake", "cxx-compiler", "git", "make", "ninja", "pip")
HEAD = "# Made from pyproject.toml by tools/render_requirements.py.\n"


def project(root: Path = ROOT) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found: dict[str, Any] = toml.loads((root / "pyproject.toml").read_text())["project"]
    return found


def requirements(declared: dict[str, Any]) -> list[str]:
    """The package's own, and those of the extras and of the extras that they name, once each."""
    found = set(declared["dependencies"])
    waiting = list(EXTRAS)
    while waiting:
        for requirement in declared["optional-dependencies"][waiting.pop()]:
            if inner := re.fullmatch(rf"{declared['name']}\[(.*)\]", requirement):
                waiting += inner[1].split(",")
            else:
                found.add(requirement)
    return sorted(found)


def rendered(declared: dict[str, Any]) -> dict[str, str]:
    names = requirements(declared)
    conda = [f"python{declared['requires-python']}", *BUILD_TOOLS]
    environment = [
        f"name: {declared['name']}",
        "channels: [conda-forge, nodefaults]",
        "dependencies:",
        *(f'  - "{tool}"' for tool in conda),
        "  - pip:",
        *(f'    - "{name}"' for name in names),
    ]
    return {
        "requirements.txt": HEAD + "\n".join(names) + "\n",
        "environment.yml": HEAD + "\n".join(environment) + "\n",
    }


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, text in rendered(project()).items():
        path = ROOT / name
        if check and (not path.exists() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
    for name in stale:
        print(f"{name} differs from pyproject.toml; call tools/render_requirements.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
