# SPDX-License-Identifier: MIT
"""Builds an extension by the command in its head, with the headers of the installed PyTorch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # are removed when the process ends
COMPILERS = {"g++": "CXX", "nvcc": "NVCC"}  # and the variables that name others
COMMAND = re.compile(r"^// Build: (.+(?:\n//   .+)*)", re.MULTILINE)


def command(source: str, target: Path) -> list[str]:
    """The build command of a source of this folder, for this machine's compiler and PyTorch."""
    head = COMMAND.search((HERE / source).read_text())
    written = head[1].replace("\n//", "").replace("TORCH/", f"{Path(torch.__file__).parent}/")
    words = shlex.split(written)
    words[0] = os.environ.get(COMPILERS[words[0]]) or words[0]
    words[words.index("-o") + 1] = str(target)
    return words


def library(source: str) -> str:
    """Compiles a source of this folder and returns the library's path.

    The process ends with status 77 where there is no compiler, and with 1 where it fails.
    """
    # A folder of its own, for a process that has loaded a library keeps the old file open.
    FOLDERS.append(tempfile.TemporaryDirectory())
    target = Path(FOLDERS[-1].name) / Path(source).with_suffix(".so").name
    compiler, *options = command(source, target)
    if shutil.which(compiler) is None:
        print(f"{compiler} is not installed")
        sys.exit(77)
    if subprocess.run([compiler, *options], cwd=HERE, check=False).returncode != 0:
        print(f"{compiler} fails")
        sys.exit(1)
    return str(target)
