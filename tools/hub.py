#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lays out the package as a kernel of the Hugging Face hub, from the sources and the built
libraries.

    build.toml, README.md, torch-ext/       what the hub and its tools read
    build/<variant>/                        __init__.py, layers.py, metadata.json, and the package

A variant is named after the stable ABI of PyTorch, the backend, the CPU and the system. Another run
with another library adds its variant to the same folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import platform
import re
import shutil
import sys
from pathlib import Path

from setup_env import ROOT

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

SOURCES = ROOT / "tools" / "hub"
PACKAGE = ROOT / "transformer_kernels"
LIBRARIES = ("libtransformer_kernels.so", "libtransformer_kernels_torch.so")
BACKEND = re.compile(r"cpu|cu\d{3}")
ARCHITECTURE = re.compile(r"\d+\.\d[af]?(\+PTX)?")  # as the loader reads them
FAT_BINARY = b".nv_fatbin"  # the section of an ELF file that holds code for GPUs


def general() -> dict[str, object]:
    found: dict[str, object] = toml.loads((SOURCES / "build.toml").read_text())["general"]
    return found


def variant_name(backend: str) -> str:
    abi = toml.loads((SOURCES / "build.toml").read_text())["torch"]["stable-abi"]
    system = f"{platform.machine()}-{platform.system().lower()}"
    return f"torch-stable-abi{abi.replace('.', '')}-{backend}-{system}"


def check_library(folder: Path, backend: str) -> None:
    """Raises where a library is missing, or has no code for the backend."""
    for name in LIBRARIES:
        if not (folder / name).is_file():
            raise SystemExit(f"hub: {folder / name} does not exist, expected a build (make build)")
    has_cuda = FAT_BINARY in (folder / LIBRARIES[0]).read_bytes()
    if has_cuda != (backend != "cpu"):
        built = "with CUDA" if has_cuda else "without CUDA"
        expected = "cu and three digits" if has_cuda else "cpu"
        raise SystemExit(
            f"hub: backend is {backend!r}, expected {expected} (the library is built {built})"
        )


def metadata(backend: str, architectures: list[str], digest: str) -> dict[str, object]:
    of_backend: dict[str, object] = {"type": "cpu" if backend == "cpu" else "cuda"}
    if architectures:
        of_backend["archs"] = architectures
    found = general()
    return {
        "id": f"_transformer_kernels_{backend}_{digest}",
        "name": found["name"],
        "version": found["version"],
        "license": found["license"],
        "python-depends": found["python-depends"],
        "backend": of_backend,
    }


def digest_of(folder: Path) -> str:
    """A number for the contents of a variant: two that differ may be loaded side by side."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(path.relative_to(folder).as_posix().encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def write_variant(out: Path, libraries: Path, backend: str, architectures: list[str]) -> Path:
    """Writes a variant in the place of an older one of its name."""
    variant = out / "build" / variant_name(backend)
    shutil.rmtree(variant, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "lib")
    shutil.copytree(PACKAGE, variant / PACKAGE.name, ignore=ignored)
    (variant / PACKAGE.name / "lib").mkdir()
    for name in LIBRARIES:
        shutil.copy2(libraries / name, variant / PACKAGE.name / "lib" / name)
    for source in sorted((SOURCES / "torch-ext" / PACKAGE.name).glob("*.py")):
        shutil.copy2(source, variant / source.name)
    described = metadata(backend, architectures, digest_of(variant))
    (variant / "metadata.json").write_text(json.dumps(described, indent=2) + "\n")
    return variant


def write_repository(out: Path, libraries: Path, backend: str, architectures: list[str]) -> Path:
    """Writes the repository with one variant; returns the variant's folder."""
    if not BACKEND.fullmatch(backend):
        raise SystemExit(f"hub: backend is {backend!r}, expected 'cpu' or one such as 'cu130'")
    for name in architectures:
        if not ARCHITECTURE.fullmatch(name):
            raise SystemExit(f"hub: architecture is {name!r}, expected one such as 9.0a, 12.0+PTX")
    check_library(libraries, backend)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES, out, dirs_exist_ok=True, ignore=ignored)
    return write_variant(out, libraries, backend, architectures)


def main() -> int:
    parser = argparse.ArgumentParser(description="Lay out a kernel of the Hugging Face hub.")
    parser.add_argument("out", type=Path, help="the repository's folder, which may exist")
    parser.add_argument(
        "--libraries", type=Path, default=PACKAGE / "lib", help="folder (default: %(default)s)"
    )
    parser.add_argument(
        "--backend", default="cpu", help="cpu, or cu130 for CUDA 13.0 (default: %(default)s)"
    )
    parser.add_argument(
        "--architectures", default="", help="of the GPUs: 8.0,9.0a,12.0+PTX (default: not told)"
    )
    options = parser.parse_args()
    architectures = [name for name in options.architectures.split(",") if name]
    print(write_repository(options.out, options.libraries, options.backend, architectures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
