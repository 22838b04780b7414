#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Installs a wheel into a fresh virtual environment and uses it from there.

A path file supplies PyTorch and its dependencies from .venv, so that nothing is downloaded.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

USE = """
import torch, transformer_kernels as tfk
from transformer_kernels import _library
assert _library.missing_reason is None, _library.missing_reason
x = torch.randn(4, 33, requires_grad=True)
y = tfk.functional.layer_norm(x, (33,))
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (33,)))
y.sum().backward()
print(tfk.__file__)
"""


def main() -> int:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        python = str(folder / "bin" / "python")
        install = [python, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", str(wheel)]
        subprocess.run(install, check=True)
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
        (Path(packages) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        use = subprocess.run(
            [python, "-c", USE], cwd=scratch, capture_output=True, text=True, check=False
        )
        if use.returncode != 0 or not use.stdout.startswith(str(folder)):
            print(use.stdout, use.stderr, sep="\n")
            print(f"[wheel] {wheel.name}: FAILED, expected it to run from its own environment")
            return 1
    print(f"[wheel] {wheel.name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
