# SPDX-License-Identifier: MIT
"""Rungs of a ladder: programs that compile alone, check and time themselves, and print a line.

A step is a folder of `tutorials/` with a README.md. Its rungs are `cpu*.cpp` and `cuda*.cu`, in the
order of their names, and its exercise is `exercise.cpp`. The head of a rung ends with the command
that builds it. A rung may be a Python program as well (`*.py`), which builds what it loads, and an
`exercise.py` checks `exercise.cpp`. A rung exits with 0, with 1 where its result is wrong, or with
77 where this machine cannot run it, and says why.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
SECONDS = 120  # that a rung may take
_NOT_HERE = 77
_BUILD = re.compile(r"^// Build: (.+)$", re.MULTILINE)
_ARCH = re.compile(r"-arch=sm_(\d+)(a?)")
_COMPILERS = {"g++": "CXX", "nvcc": "NVCC"}  # and the variables that name others

# Arguments for a problem of a moment's time.
_SMALL = {
    "step1-simple": ["100003"],
    "step2-reduction": ["66", "1024"],
    "step3-attention": ["2", "256"],
    "step4-fused": ["256", "128", "128"],
    "step5-integration": ["2", "64", "2", "32"],
}


@dataclass(frozen=True)
class Line:
    """The line that a rung printed, or the reason why it did not."""

    rung: str
    device: str = ""
    problem: str = ""
    us: float = 0.0
    rate: float = 0.0
    unit: str = ""
    of_ceiling: float = 0.0  # percent
    error: float = 0.0
    why_absent: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Rung:
    source: Path

    @property
    def name(self) -> str:
        return self.source.stem

    @property
    def step(self) -> str:
        return self.source.parent.name

    @property
    def is_cuda(self) -> bool:
        return self.source.suffix == ".cu"

    @property
    def is_python(self) -> bool:
        return self.source.suffix == ".py"

    @property
    def kernel(self) -> str:
        """The source, without the frame and the main program behind it."""
        return self.source.read_text().partition("// ---- frame")[0].rstrip()

    def command(self, program: Path, capability: int | None) -> list[str]:
        """The build command of the head, for this machine.

        A CUDA rung is compiled for the card in place of the oldest card that runs it; architectures
        with an ``a`` (of one card only) stay.

        Args:
            program: the file to write.
            capability: of the card, 90 for instance; None without a card.
        """
        match = _BUILD.search(self.source.read_text())
        if match is None:
            raise ValueError(f"{self.source}: the head has no line `// Build: COMMAND`")
        compiler, *arguments = shlex.split(match[1])
        arguments = [a for a in arguments if a not in ("-o", self.name, self.source.name)]
        arch = _ARCH.search(match[1])
        if arch and not arch[2] and capability and capability > int(arch[1]):
            arguments = [_ARCH.sub(f"-arch=sm_{capability}", a) for a in arguments]
        chosen = os.environ.get(_COMPILERS.get(compiler, ""), "") or compiler
        return [*shlex.split(chosen), *arguments, "-o", str(program), str(self.source)]


def steps(folder: Path = TUTORIALS) -> list[Path]:
    """The folders of the steps, in order.

    Raises:
        ValueError: there are none, as in an installed wheel.
    """
    found = sorted(path.parent for path in folder.glob("step*/README.md"))
    if not found:
        raise ValueError(f"{folder} has no tutorials, expected a checkout of the project")
    return found


def rungs(step: Path, kinds: tuple[str, ...] = ("cpu", "cuda")) -> list[Rung]:
    suffixes = {"cpu": (".cpp", ".py"), "cuda": (".cu", ".py")}
    paths = ((kind, path) for kind in kinds for path in sorted(step.glob(f"{kind}*")))
    return [Rung(path) for kind, path in paths if path.suffix in suffixes[kind]]


def exercise(step: Path) -> Rung:
    checked = step / "exercise.py"
    return Rung(checked if checked.exists() else step / "exercise.cpp")


def build(rung: Rung, folder: Path, capability: int | None = None) -> str:
    """Compiles a rung into `folder`; returns why that failed, or nothing."""
    if rung.is_python:
        return ""
    program = folder / rung.step / rung.name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.unlink(missing_ok=True)
    command = rung.command(program, capability)
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return ""
    said = (result.stderr or result.stdout).strip().splitlines() or ["it says nothing"]
    return f"{command[0]} fails: {next((s for s in said if 'error' in s), said[0])}"


def build_all(wanted: list[Rung], folder: Path, capability: int | None) -> dict[Rung, str]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda rung: build(rung, folder, capability), wanted)
        return dict(zip(wanted, said, strict=True))


def invocation(rung: Rung, folder: Path) -> list[str]:
    """The command that runs a rung, which build() has put into `folder`."""
    if rung.is_python:
        return [sys.executable, str(rung.source)]
    return [str(folder / rung.step / rung.name)]


def run(rung: Rung, folder: Path, small: bool = False) -> Line:
    """Runs a rung that was built into `folder`."""
    arguments = _SMALL[rung.step] if small else []
    try:
        result = subprocess.run([*invocation(rung, folder), *arguments], capture_output=True,
                                text=True, check=False, timeout=SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        return Line(rung.name, why_absent=f"takes more than {SECONDS} s", failed=True)
    said = result.stdout.strip().splitlines() or [result.stderr.strip() or "it prints nothing"]
    if result.returncode == _NOT_HERE:
        return Line(rung.name, why_absent=said[-1])
    if result.returncode != 0:
        reason = f"exit status {result.returncode}: {said[-1]}"
        return Line(rung.name, why_absent=reason, failed=True)
    return parse(next((line for line in reversed(said) if line.count("|") == 6), said[-1]))


def parse(text: str) -> Line:
    """Reads `rung | device | problem | 12.3 us | 45.6 GB/s | 78.9 % | 1.2e-07`.

    Raises:
        ValueError: the line has another form.
    """
    parts = [part.strip() for part in text.split("|")]
    if len(parts) != 7:
        raise ValueError(f"the rung printed {text!r}, expected seven parts between bars")
    rung, device, problem, us, rate, share, error = parts
    value, unit = rate.split()
    numbers = (float(us.split()[0]), float(value), float(share.split()[0]), float(error))
    return Line(rung, device, problem, numbers[0], numbers[1], unit, numbers[2], numbers[3])
