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
from collections.abc import Sequence
from pathlib import Path

from setup_env import ROOT, has_nvidia_driver

SCRIPTS = ROOT / ".venv" / "bin"


def has_nvcc() -> bool:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [str(Path(home) / "bin") for home in homes if home]
    return any(shutil.which("nvcc", path=folder) for folder in (None, *folders))


def card_architectures() -> list[str]:
    """CUDA architectures of the cards in this machine, as CMake names them."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return architectures_of(answer.split())


def architectures_of(capabilities: Sequence[str]) -> list[str]:
    """The targets for these cards: Hopper's own instructions need "90a", its successors' a family
    target."""
    suffix = {"90": "90a-real", "100": "100f-real", "103": "100f-real"}
    numbers = sorted({capability.replace(".", "") for capability in capabilities}, key=int)
    return sorted({suffix.get(number, f"{number}-real") for number in numbers})


def development_preset(choice: str, nvcc: bool, driver: bool) -> str:
    if choice == "0" or not nvcc:
        return "cpu"
    return "cuda" if driver or choice == "1" else "cpu"


def cmake_options(preset: str) -> list[str]:
    options = [
        f"-DCMAKE_MAKE_PROGRAM={SCRIPTS / 'ninja'}",
        f"-DPython3_EXECUTABLE={SCRIPTS / 'python'}",
    ]
    architectures = card_architectures() if preset == "cuda" else []
    if architectures:
        options.append(f"-DTFK_CUDA_ARCHITECTURES={';'.join(architectures)}")
    return options


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
    call(SCRIPTS / "cmake", "--preset", preset, *cmake_options(preset), *definitions)
    call(SCRIPTS / "cmake", "--build", "--preset", preset, "--parallel", str(arguments.jobs))
    if arguments.test:
        jobs = str(arguments.jobs)
        call(SCRIPTS / "ctest", "--preset", preset, "--no-tests=error", "--parallel", jobs)


if __name__ == "__main__":
    main()
