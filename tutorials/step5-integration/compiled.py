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
COMMAND = re.compile(r"^// Build: (.+(?:\n//   .+)*)", re.MULTILINE)


def library(source: str) -> str:
    """Compiles a source of this folder and returns the library's path.

    The process ends with status 77 where there is no compiler, and with 1 where it fails.
    """
    head = COMMAND.search((HERE / source).read_text())
    command = head[1].replace("\n//", "").replace("TORCH/", f"{Path(torch.__file__).parent}/")
    words = shlex.split(command)
    compiler = os.environ.get("CXX") or words[0]
    if shutil.which(compiler) is None:
        print(f"{compiler} is not installed")
        sys.exit(77)
    # A folder of its own, for a process that has loaded a library keeps the old file open.
    FOLDERS.append(tempfile.TemporaryDirectory())
    target = Path(FOLDERS[-1].name) / Path(source).with_suffix(".so").name
    words[words.index("-o") + 1] = str(target)
    if subprocess.run([compiler, *words[1:]], cwd=HERE, check=False).returncode != 0:
        print(f"{compiler} fails")
        sys.exit(1)
    return str(target)
