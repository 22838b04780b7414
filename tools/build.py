#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Configures, builds and tests the C++ side with the CMake and Ninja of `.venv`.

    build.py            the development build: libraries into transformer_kernels/lib, C++ tests
    build.py --test     the same, then the C++ tests
    build.py asan       another preset of CMakePresets.json

The development build has CUDA kernels where nvcc and an NVIDIA driver are found, for the cards of
this machine; TFK_CUDA=1 asks for them without a driver (every architecture), TFK_CUDA=0 refuses.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setup_env import ROOT, has_nvidia_driver

SCRIPTS = ROOT / ".venv" / "bin"


def has_nvcc() -> bool:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [str(Path(home) / "bin") for home in homes if home]
    return any(shutil.which("nvcc", path=folder) for folder in (None, *folders))


def development_preset(choice: str, nvcc: bool, driver: bool) -> str:
    if choice == "0" or not nvcc:
        return "cpu"
    return "cuda" if driver or choice == "1" else "cpu"


def cmake_options() -> list[str]:
    return [
        f"-DCMAKE_MAKE_PROGRAM={SCRIPTS / 'ninja'}",
        f"-DPython3_EXECUTABLE={SCRIPTS / 'python'}",
    ]


def drop_foreign_build(folder: Path) -> None:
    """Removes a build folder that was moved from another place, which CMake cannot use."""
    cache = folder / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
        shutil.rmtree(folder)


def call(*command: str | Path) -> None:
    result = subprocess.run([str(part) for part in command], cwd=ROOT)
    if result.returncode != 0:
        sys.exit(result.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description="Configure, build and test the C++ side.")
    parser.add_argument("preset", nargs="?", help="of CMakePresets.json; default: cpu or cuda")
    parser.add_argument("--test", action="store_true", help="run the C++ tests as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilers")
    parser.add_argument("--define", "-D", action="append", default=[], help="CMake cache entries")
    arguments = parser.parse_args()
    choice = os.environ.get("TFK_CUDA", "")
    preset = arguments.preset or development_preset(choice, has_nvcc(), has_nvidia_driver())
    drop_foreign_build(ROOT / "build" / preset)
    definitions = [f"-D{entry}" for entry in arguments.define]
    call(SCRIPTS / "cmake", "--preset", preset, *cmake_options(), *definitions)
    call(SCRIPTS / "cmake", "--build", "--preset", preset, "--parallel", str(arguments.jobs))
    if arguments.test:
        jobs = str(arguments.jobs)
        call(SCRIPTS / "ctest", "--preset", preset, "--no-tests=error", "--parallel", jobs)


if __name__ == "__main__":
    main()
