#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Installs a wheel into fresh virtual environments of Python 3.10 to 3.14 and uses it from there.

uv makes the environments, with the interpreters that this machine has or, without --offline, that
uv can fetch. The one of .venv's version sees PyTorch and its dependencies there by a path file, so
that nothing is downloaded: it computes. The others have no PyTorch: the package is compiled, and
its library loaded, whose part for PyTorch is the same for every Python.

    check_wheel.py WHEEL [--offline]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from setup_env import ROOT

UV = ROOT / ".venv" / "bin" / "uv"
MINORS = range(10, 15)

USE = """
import torch, transformer_kernels as tfk
from transformer_kernels import _library
assert _library.missing_reason is None, _library.missing_reason
x = torch.randn(4, 33, requires_grad=True)
y = tfk.functional.layer_norm(x, (33,))
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (33,)))
y.sum().backward()
try:
    tfk.functional.layer_norm(x, (33,), torch.ones(32))
except RuntimeError as error:  # of C++: the text is put together there
    assert "weight" in str(error), error
else:
    raise AssertionError("a wrong weight is taken")
print(tfk.__file__)
"""
LOAD = """
import compileall, ctypes, importlib.metadata, importlib.util, pathlib
(place,) = importlib.util.find_spec("transformer_kernels").submodule_search_locations
assert compileall.compile_dir(place, quiet=1)
library = ctypes.CDLL(pathlib.Path(place, "lib", "libtransformer_kernels.so"))
library._ZN19transformer_kernels12log_dispatchEv()
assert importlib.metadata.version("transformer-kernels")
print(place)
"""


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command outside of this tree's environments."""
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    outside["UV_HTTP_RETRIES"] = "0"  # without a network the answer is soon known
    parts = [str(part) for part in command]
    return subprocess.run(parts, cwd=cwd, env=outside, capture_output=True, text=True, check=False)


def try_wheel(wheel: Path, version: str, scratch: Path, offline: bool) -> str | None:
    """Returns what went wrong with the wheel in a fresh environment of this Python; None where it
    was used as expected, and "" where there is no such Python."""
    folder = scratch / version
    options = ["--no-python-downloads"] if offline else []
    if run(UV, "venv", "-q", *options, "--python", version, folder).returncode != 0:
        return ""
    python = folder / "bin" / "python"
    install = run(UV, "pip", "install", "-q", "--offline", "--no-deps", "--python", python, wheel)
    if install.returncode != 0:
        return install.stderr
    is_own = version == f"3.{sys.version_info.minor}"
    if is_own:
        packages = folder / "lib" / f"python{version}" / "site-packages"
        outer = [path for path in sys.path if path.endswith("-packages")]
        (packages / "outer.pth").write_text("\n".join(outer) + "\n")
    use = run(python, "-c", USE if is_own else LOAD, cwd=scratch)
    if use.returncode == 0 and use.stdout.startswith(str(folder)):
        return None
    return f"{use.stdout}\n{use.stderr}\nexpected it to run from its own environment"


def main() -> int:
    parser = argparse.ArgumentParser(description="Install a wheel into fresh environments.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--offline", action="store_true", help="let uv fetch no Python")
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve()
    failed, used = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for version in (f"3.{minor}" for minor in MINORS):
            fault = try_wheel(wheel, version, Path(scratch), arguments.offline)
            if fault:
                print(fault)
                failed.append(version)
            elif fault is None:
                used.append(version)
            verdict = {None: "ok", "": "not tried, no such Python here"}.get(fault, "FAILED")
            print(f"[wheel] {wheel.name}: Python {version}: {verdict}", flush=True)
    own = f"3.{sys.version_info.minor}"
    return 1 if failed or own not in used else 0


if __name__ == "__main__":
    sys.exit(main())
