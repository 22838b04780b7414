#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Installs a wheel into fresh virtual environments of Python 3.10 to 3.14 and uses it from there.

uv makes the environments, with the interpreters that this machine has (pyenv's among them) or,
without --offline, that uv can fetch. The one of the running Python's version sees the PyTorch of
that by a path file, and computes. The others compute with a PyTorch that uv fetches: the oldest
Python with the oldest PyTorch that the package supports, the rest with the newest. Where none can
be fetched, the package is compiled and its library loaded: its part for PyTorch is the same for
every Python. The last line names the PyTorch versions that computed.

    check_wheel.py WHEEL [--offline]
    python3.14 tools/check_wheel.py WHEEL       beside the PyTorch of another Python of the machine
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from setup_env import CPU_INDEX, OLDEST_TORCH, ROOT

UV = ROOT / ".venv" / "bin" / "uv"
VERSIONS = [f"3.{minor}" for minor in range(10, 15)]
OWN_VERSION = f"3.{sys.version_info.minor}"

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
print(tfk.__file__, torch.__version__)
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


class Trial(NamedTuple):
    """A Python's verdict on the wheel, with the PyTorch that computed, or with what went wrong."""

    verdict: str
    torch: str = ""
    fault: str = ""


def search_path() -> str:
    """PATH, and behind it the folders of pyenv's Pythons: in PATH there are only its shims, which
    refuse to start a Python that nobody has chosen."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return os.pathsep.join([os.environ["PATH"], *map(str, pyenv.glob("versions/*/bin"))])


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command outside of this tree's environments."""
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    outside["UV_HTTP_RETRIES"] = "0"  # without a network the answer is soon known
    outside["PATH"] = search_path()
    parts = [str(part) for part in command]
    return subprocess.run(parts, cwd=cwd, env=outside, capture_output=True, text=True, check=False)


def share_torch(folder: Path, version: str) -> None:
    """Lets the environment see what the running Python has installed."""
    packages = folder / "lib" / f"python{version}" / "site-packages"
    outer = [path for path in sys.path if path.endswith("-packages")]
    (packages / "outer.pth").write_text("\n".join(outer) + "\n")


def fetch_torch(python: str, version: str, index: str) -> bool:
    """Installs a PyTorch for this Python from the index; returns whether it was to be had."""
    oldest = "{}.{}".format(*OLDEST_TORCH)
    wanted = f"torch=={oldest}.*" if version == VERSIONS[0] else f"torch>={oldest}"
    options = ("-q", "--index-url", index, "--python", python)
    return run(UV, "pip", "install", *options, wanted).returncode == 0


def environment(version: str, folder: Path, index: str | None) -> str:
    """Makes a fresh environment of this Python; returns its name, or "" where there is none."""
    options = [] if index else ["--no-python-downloads"]
    chosen = sys.executable if version == OWN_VERSION else version
    made = run(UV, "venv", "-q", *options, "--python", chosen, folder)
    return str(folder / "bin" / "python") if made.returncode == 0 else ""


def try_wheel(wheel: Path, version: str, scratch: Path, index: str | None) -> Trial:
    folder = scratch / version
    python = environment(version, folder, index)
    if not python:
        return Trial("not tried, no such Python here")
    install = run(UV, "pip", "install", "-q", "--offline", "--no-deps", "--python", python, wheel)
    if install.returncode != 0:
        return Trial("FAILED", fault=install.stderr)
    if version == OWN_VERSION:
        share_torch(folder, version)
    computes = version == OWN_VERSION or (index and fetch_torch(python, version, index))
    use = run(python, "-c", USE if computes else LOAD, cwd=scratch)
    place, _, torch = use.stdout.strip().partition(" ")
    if use.returncode != 0 or not place.startswith(str(folder)):
        fault = f"{use.stdout}\n{use.stderr}\nexpected it to run from its own environment\n"
        return Trial("FAILED", fault=fault)
    return Trial(f"computed beside PyTorch {torch}" if torch else "loaded, no PyTorch here", torch)


def main() -> int:
    parser = argparse.ArgumentParser(description="Install a wheel into fresh environments.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--offline", action="store_true", help="let uv fetch nothing")
    parser.add_argument("--torch-index", default=CPU_INDEX, help="has PyTorch (%(default)s)")
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve()
    index = None if arguments.offline else arguments.torch_index
    trials = {}
    with tempfile.TemporaryDirectory() as scratch:
        for version in VERSIONS:
            trials[version] = trial = try_wheel(wheel, version, Path(scratch), index)
            print(
                f"{trial.fault}[wheel] {wheel.name}: Python {version}: {trial.verdict}", flush=True
            )
    torches = sorted({trial.torch for trial in trials.values() if trial.torch})
    note = "" if len(torches) > 1 else "; a second PyTorch is not to be had here"
    print(f"[wheel] {wheel.name}: PyTorch: {', '.join(torches) or 'none'}{note}")
    failed = any(trial.fault for trial in trials.values())
    return 1 if failed or not trials[OWN_VERSION].torch else 0


if __name__ == "__main__":
    sys.exit(main())
