#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prepares `.venv`: a PyTorch that fits this machine, and the packages of the named groups.

    setup_env.py [run] [lint] [docs]       groups are files of tools/requirements/
    TORCH="torch==2.11.0" setup_env.py     takes this PyTorch instead

A group that is ready is left alone, so that a second call needs no network. Only the standard
library is needed. Missing system packages are installed for root on Debian, and otherwise named.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tools" / "requirements"
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 10)
MANAGERS = ("apt-get", "dnf", "brew")
CPU_TORCH = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class SetupError(Exception):
    """The user has to provide something; the message says what and how."""


def say(message: str) -> None:
    print(f"[setup] {message}", flush=True)


def run(
    command: Sequence[str | Path],
    *,
    text: str | None = None,
    quiet: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE if quiet else None
    parts = [str(part) for part in command]
    return subprocess.run(
        parts, input=text, stdout=pipe, stderr=pipe, text=True, env=environment, check=False
    )


# --- what the system has to provide -------------------------------------------------------------


def cxx_compiler() -> str | None:
    named = os.environ.get("CXX", "").split()
    candidates = named[:1] or ["c++", "g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def has_gtest() -> bool:
    compiler = cxx_compiler()
    if compiler is None:
        return False
    probe = run([compiler, "-x", "c++", "-E", "-"], text="#include <gtest/gtest.h>\n", quiet=True)
    return probe.returncode == 0


def has_venv() -> bool:
    return run([sys.executable, "-c", "import ensurepip, venv"], quiet=True).returncode == 0


@dataclass(frozen=True)
class SystemPackage:
    what: str
    present: Callable[[], object]
    names: Mapping[str, str]  # package names by package manager


def executable(name: str, managers: Sequence[str]) -> SystemPackage:
    """A program whose package has the program's name."""
    return SystemPackage(name, lambda: shutil.which(name), dict.fromkeys(managers, name))


# The package managers that have each program.
FPGA_TOOLS: Mapping[str, Sequence[str]] = {
    "verilator": MANAGERS,
    "yosys": MANAGERS,
    "z3": MANAGERS,
    "nextpnr-ice40": ("apt-get",),
}


def system_packages() -> dict[str, SystemPackage]:
    venv = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    return {
        "venv": SystemPackage(
            "Python's venv and ensurepip modules", has_venv, {"apt-get": venv, "dnf": "python3"}
        ),
        "compiler": SystemPackage(
            "a C++ compiler", cxx_compiler, {"apt-get": "g++", "dnf": "gcc-c++", "brew": "gcc"}
        ),
        "doxygen": SystemPackage(
            "Doxygen", lambda: shutil.which("doxygen"), dict.fromkeys(MANAGERS, "doxygen")
        ),
        "gtest": SystemPackage(
            "GoogleTest",
            has_gtest,
            {"apt-get": "libgtest-dev", "dnf": "gtest-devel", "brew": "googletest"},
        ),
        **{name: executable(name, managers) for name, managers in FPGA_TOOLS.items()},
    }


def missing_message(missing: Sequence[SystemPackage], manager: str | None) -> str:
    lines = ["this machine lacks " + " and ".join(package.what for package in missing)]
    if manager is None:
        lines.append("install it with the system's package manager, then call make again")
    else:
        names = " ".join(package.names[manager] for package in missing)
        prefix = "" if manager == "brew" else "sudo "
        lines.append(f"install with: {prefix}{manager} install {names}")
    return "\n".join(lines)


def require_system_packages(keys: Sequence[str]) -> None:
    known = system_packages()
    missing = [known[key] for key in keys if not known[key].present()]
    if not missing:
        return
    managers = [name for name in MANAGERS if shutil.which(name)]
    manager = next((m for m in managers if all(m in p.names for p in missing)), None)
    if manager == "apt-get" and os.geteuid() == 0:
        names = [package.names[manager] for package in missing]
        say(f"installing {' '.join(names)}")
        run(["apt-get", "update", "-qq"])
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
        run(install, quiet=True, environment={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        missing = [package for package in missing if not package.present()]
    if missing:
        raise SetupError(missing_message(missing, manager))


# --- which PyTorch ------------------------------------------------------------------------------


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def torch_version(python: str | Path) -> str | None:
    probe = run([python, "-c", "import torch; print(torch.__version__)"], quiet=True)
    return probe.stdout.strip() if probe.returncode == 0 else None


def is_recent(version: str | None) -> bool:
    if version is None:
        return False
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= OLDEST_TORCH


def torch_attempts(override: str, driver: bool, platform: str) -> list[list[str]]:
    """Arguments of `pip install` for a venv without PyTorch, in the order to try them.

    The default index of Linux serves CUDA builds of several gigabytes, so PyTorch is taken from it
    only if there is a driver to use them.
    """
    if override:
        return [[override]]
    if driver or platform != "linux":
        return [["torch>=" + ".".join(map(str, OLDEST_TORCH))]]
    build = f"torch=={CPU_TORCH}+cpu"
    return [["--no-index", "--no-deps", build], ["--index-url", CPU_INDEX, build]]


# --- the virtual environment --------------------------------------------------------------------


class Environment:
    """A venv with stamps: `.ready-<name>` records the content, interpreter and place that it
    fits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.identity = f"{folder} {sys.version_info[:3]} {sys.base_prefix}"

    def stamp(self, name: str) -> Path:
        return self.folder / f".ready-{name}"

    def key(self, content: str) -> str:
        return hashlib.sha256(f"{self.identity}\n{content}".encode()).hexdigest()

    def is_ready(self, name: str, content: str = "") -> bool:
        stamp = self.stamp(name)
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.key(content)

    def mark_ready(self, name: str, content: str = "") -> None:
        self.stamp(name).write_text(self.key(content))

    def pip(self, *arguments: str | Path, quiet: bool = False) -> bool:
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "-qq"]
        return run([*command, *arguments], quiet=quiet).returncode == 0

    def usable(self) -> bool:
        """Whether it was made for this interpreter and has not been moved."""
        if self.stamp("venv").exists():
            return self.is_ready("venv")
        version = "import pip, sys; print(*sys.version_info[:2])"
        if not self.python.exists():
            return False
        answer = run([self.python, "-c", version], quiet=True).stdout.split()
        return answer == [str(part) for part in sys.version_info[:2]]

    def create(self, keep_outer_torch: bool) -> None:
        outer = torch_version(sys.executable) if keep_outer_torch else None
        share = is_recent(outer)
        note = f", which has PyTorch {outer}" if share else ""
        say(f"creating {self.folder.name} for Python {sys.version.split()[0]}{note}")
        options = ["--system-site-packages"] if share else []
        command = [sys.executable, "-m", "venv", "--clear", *options, str(self.folder)]
        if run(command).returncode != 0:
            raise SetupError("python -m venv failed; the lines above say why")
        if share and sys.prefix != sys.base_prefix:
            self.add_path("outer", Path(sysconfig.get_path("purelib")))

    def add_path(self, name: str, target: Path) -> None:
        library = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self.folder / "lib" / library / "site-packages"
        (packages / f"{name}.pth").write_text(f"{target}\n")

    def add_project(self) -> None:
        """Makes the package importable from the working tree, and its command run from there."""
        self.add_path("transformer_kernels", ROOT)
        command = self.folder / "bin" / "transformer-kernels"
        command.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m transformer_kernels "$@"\n')
        command.chmod(0o755)

    def install_torch(self, override: str) -> str:
        if override or torch_version(self.python) is None:
            attempts = torch_attempts(override, has_nvidia_driver(), sys.platform)
            if not any(self.try_torch(arguments) for arguments in attempts):
                raise SetupError("pip could not install PyTorch; name one with TORCH='torch==...'")
        version = torch_version(self.python)
        if not is_recent(version):
            oldest = ".".join(map(str, OLDEST_TORCH))
            raise SetupError(
                f"PyTorch is {version}, expected at least {oldest}; "
                "name one with TORCH='torch==...'"
            )
        return str(version)

    def try_torch(self, arguments: list[str]) -> bool:
        """Installs PyTorch. The second call adds the dependencies that --no-deps left out."""
        say(f"PyTorch: pip install {' '.join(arguments)}")
        return self.pip(*arguments, quiet=True) and self.pip(arguments[-1])

    def install_group(self, group: str, torch: str) -> None:
        file = REQUIREMENTS / f"{group}.txt"
        say(f"packages of {file.relative_to(ROOT)}")
        constraint = self.folder / "constraints.txt"
        constraint.write_text(f"torch=={torch}\n")
        if not self.pip("-r", file, "-c", constraint):
            raise SetupError(f"pip could not install {file.relative_to(ROOT)}; see above")


def set_up(groups: Sequence[str], system: Sequence[str], folder: Path, override: str) -> None:
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise SetupError(
            f"Python is {sys.version.split()[0]}, expected at least {oldest}; "
            "name one with PYTHON=python3.x"
        )
    require_system_packages(system)
    environment = Environment(folder)
    wanted = {group: (REQUIREMENTS / f"{group}.txt").read_text() for group in groups}
    torch_ready = not override or environment.is_ready("torch", override)
    if torch_ready and all(environment.is_ready(name, text) for name, text in wanted.items()):
        return
    if not environment.usable():
        environment.create(keep_outer_torch=not override)
    torch = environment.install_torch("" if environment.is_ready("torch", override) else override)
    environment.add_project()
    environment.mark_ready("venv")
    environment.mark_ready("torch", override)
    for name, text in wanted.items():
        if not environment.is_ready(name, text):
            environment.install_group(name, torch)
            environment.mark_ready(name, text)
    say(f"ready: Python {sys.version.split()[0]}, PyTorch {torch}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    parser.add_argument("groups", nargs="*", default=["run"], help=f"of {', '.join(choices)}")
    parser.add_argument(
        "--need",
        action="append",
        default=[],
        choices=sorted(system_packages()),
        help="a system package that the caller needs as well",
    )
    arguments = parser.parse_args()
    try:
        override = os.environ.get("TORCH", "")
        set_up(arguments.groups, ["venv", *arguments.need], ROOT / ".venv", override)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
