# SPDX-License-Identifier: MIT
"""Examines this installation: machine, PyTorch, what is built, what is missing and how to get it.

$ transformer-kernels doctor

The exit status is 1 where there is a problem: something that is installed cannot be used.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from . import _library, _processor
from ._version import __version__

OLDEST_CARD = (7, 5)
CMAKE_FOR_CUDA = (3, 31, 10)
BUILD = "install a wheel, or build from the source tree with `make build` or `pip install .`"
BUILD_CUDA = (
    "build on this machine with nvcc 13 on PATH (`make build`, or `pip install .`), or install a"
    " wheel of dist/cu13"
)


@dataclass(frozen=True)
class Finding:
    """A fact about one topic: "ok", a "note" (something is not there, which may be meant), or
    a "problem"; ``advice`` says what to do about the last two."""

    topic: str
    status: Literal["ok", "note", "problem"]
    value: str
    advice: str = ""


@dataclass(frozen=True)
class Card:
    """A card as nvidia-smi describes it, which asks the driver and not PyTorch."""

    name: str
    capability: tuple[int, int]
    driver: str
    memory: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object, not a table")


def run(arguments: argparse.Namespace) -> int:
    findings = examine()
    if arguments.json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print(table(findings))
    return 1 if any(finding.status == "problem" for finding in findings) else 0


def examine() -> list[Finding]:
    """Returns the findings on this installation, in the order of the table."""
    found = [finding for step in _STEPS for finding in step()]
    return [*found, *cuda_findings(cards(), torch.version.cuda, torch.cuda.is_available())]


def table(findings: Sequence[Finding]) -> str:
    """A line for each finding, and one below it for its advice."""
    topics = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<9}{finding.topic:<{topics + 2}}{finding.value}")
        if finding.advice:
            lines.append(f"{'':<{topics + 11}}-> {finding.advice}")
    count = sum(finding.status == "problem" for finding in findings)
    return "\n".join([*lines, f"{count} problem{'' if count == 1 else 's'}"])


def output_of(*command: str) -> str | None:
    """Returns what a program prints; None where there is no such program, or it fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def cards() -> list[Card]:
    """The NVIDIA cards of this machine; none where there is no driver."""
    fields = "--query-gpu=name,compute_cap,driver_version,memory.total"
    return parse_cards(output_of("nvidia-smi", fields, "--format=csv,noheader") or "")


def parse_cards(listing: str) -> list[Card]:
    """The cards in a listing of nvidia-smi: name, compute capability, driver, memory."""
    found = []
    for line in listing.splitlines():
        name, capability, driver, memory = (part.strip() for part in line.rsplit(",", 3))
        if match := re.fullmatch(r"(\d+)\.(\d+)", capability):
            found.append(Card(name, (int(match[1]), int(match[2])), driver, memory))
    return found


def _package() -> Iterator[Finding]:
    place = os.path.dirname(__file__)
    yield Finding("transformer_kernels", "ok", f"{__version__} in {place}")
    python = f"{platform.python_version()} ({sys.executable}), {platform.system()}"
    yield Finding("python", "ok", f"{python} {platform.machine()}")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    yield Finding("torch", "ok", f"{torch.__version__}, built with {built}")


def _processor_and_library() -> Iterator[Finding]:
    name = f"{_processor.cpu_name()}, {os.cpu_count()} cores"
    chosen, *possible = _processor.cpu_instruction_sets()
    if not chosen:
        yield Finding("cpu", "ok", name)
        reason = str(_library.missing_reason)
        yield Finding("library", "problem", f"PyTorch formulas run instead: {reason}", BUILD)
        return
    yield Finding("cpu", "ok", f"{name}: {chosen} kernels, of {', '.join(possible)}")
    yield Finding("library", "ok", str(_library.library_path()))


def cuda_findings(found: Sequence[Card], built: str | None, available: bool) -> Iterator[Finding]:
    """Yields each card, and what stands between the cards and the CUDA kernels.

    ``built`` is the CUDA version of this PyTorch, or None; ``available`` says whether PyTorch can
    use a card.
    """
    for card in found:
        sm = "sm_{}{}".format(*card.capability)
        value = f"{card.name} ({sm}, {card.memory}), driver {card.driver}"
        if card.capability >= OLDEST_CARD:
            yield Finding("card", "ok", value)
        else:
            oldest = "sm_{}{}".format(*OLDEST_CARD)
            yield Finding("card", "note", value, f"kernels run from {oldest} on, formulas here")
    if not found:
        yield Finding("card", "ok", "no NVIDIA card (nvidia-smi lists none)")
    elif built is None:
        advice = "install a PyTorch with CUDA: https://pytorch.org/get-started/locally"
        yield Finding("cuda", "problem", "this PyTorch has no CUDA", advice)
    elif not available:
        advice = f"the driver is too old for CUDA {built}, or CUDA_VISIBLE_DEVICES hides the cards"
        yield Finding("cuda", "problem", "PyTorch cannot use the cards", advice)
    elif not _library.has_cuda_kernels:
        yield Finding("cuda", "problem", "the library has no CUDA kernels", BUILD_CUDA)
    if _library.has_cuda_kernels:
        yield Finding("cuda", "ok", "the library has CUDA kernels")


def _triton() -> Iterator[Finding]:
    if importlib.util.find_spec("triton") is None:
        value, advice = "not installed", "`pip install triton`, for the Triton twins of the kernels"
        yield Finding("triton", "note", value, advice)
    else:
        yield Finding("triton", "ok", importlib.metadata.version("triton"))


def _build_tools() -> Iterator[Finding]:
    compiler = output_of(os.environ.get("CXX", "c++").split()[0], "--version")
    if compiler is None:
        yield Finding("compiler", "note", "no C++ compiler", "needed to build; apt install g++")
    else:
        yield Finding("compiler", "ok", compiler.splitlines()[0])
    nvcc = re.search(r"release (\S+),", output_of("nvcc", "--version") or "")
    if nvcc:
        yield Finding("nvcc", "ok", nvcc[1])
    else:
        advice = "needed to build the CUDA kernels; the CUDA toolkit 13 has it"
        yield Finding("nvcc", "note", "not on PATH", advice)
    yield cmake_finding(output_of("cmake", "--version"))


def cmake_finding(answer: str | None) -> Finding:
    """Whether the CMake that printed ``answer`` builds everything; None stands for no CMake."""
    version = re.search(r"(\d+)\.(\d+)\.(\d+)", answer or "")
    if version is None:
        return Finding("cmake", "note", "not on PATH", "needed to build; pip brings its own")
    needed = ".".join(map(str, CMAKE_FOR_CUDA))
    if tuple(map(int, version.groups())) < CMAKE_FOR_CUDA:
        advice = f"the CUDA kernels need {needed}; pip brings its own, `pip install cmake` has one"
        return Finding("cmake", "note", version[0], advice)
    return Finding("cmake", "ok", version[0])


def _extras() -> Iterator[Finding]:
    try:
        requirements = importlib.metadata.requires("transformer-kernels") or []
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return
    for extra, missing in missing_packages(requirements).items():
        advice = f"pip install 'transformer-kernels[{extra}]'"
        value = f"without {', '.join(missing)}" if missing else "installed"
        yield Finding(f"[{extra}]", "note" if missing else "ok", value, advice if missing else "")


def missing_packages(requirements: Sequence[str]) -> Mapping[str, list[str]]:
    """The packages that each extra still lacks, from the lines ``Requires-Dist`` of a package."""
    lacking: dict[str, list[str]] = {}
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if name is None or extra is None or name[0] == "transformer-kernels":
            continue
        packages = lacking.setdefault(extra[1], [])
        try:
            importlib.metadata.version(name[0])
        except importlib.metadata.PackageNotFoundError:
            packages.append(name[0])
    return lacking


def _environment() -> Iterator[Finding]:
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("TFK_")]
    yield Finding("environment", "ok", " ".join(settings) or "no TFK_* variable set")


_STEPS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _package, _processor_and_library, _triton, _build_tools, _extras, _environment,
)  # fmt: skip
