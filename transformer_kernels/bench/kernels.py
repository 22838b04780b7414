# SPDX-License-Identifier: MIT
"""Finds out which kernel the library chooses for a problem.

The library reports it on stderr under TFK_LOG=dispatch, which it reads once and which slows down
every call. So a child process runs each problem once, and its stderr is read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import torch

from transformer_kernels.bench import cases
from transformer_kernels.measure.case import Problem, dtype_name
from transformer_kernels.measure.sweeps import shape_text

_MARKER = "[problem]"
_RUNS = re.compile(r"\[tfk\] .*: (.+) runs$")


def chosen_kernels(problems: Sequence[Problem], device: torch.device) -> dict[Problem, str]:
    """The kernels of each problem, in the order in which they run; problems without a report are
    absent."""
    command = [sys.executable, "-m", __name__, device.type]
    child = subprocess.run(
        command,
        input="\n".join(_to_line(problem) for problem in problems),
        env={**os.environ, "TFK_LOG": "dispatch"},
        capture_output=True,
        text=True,
        check=False,
    )
    return parse_log(child.stderr, problems)


def parse_log(log: str, problems: Sequence[Problem]) -> dict[Problem, str]:
    names: dict[Problem, list[str]] = {}
    current: list[str] = []
    for line in log.splitlines():
        if line.startswith(_MARKER):
            current = names.setdefault(problems[int(line.removeprefix(_MARKER))], [])
        elif match := _RUNS.search(line):
            current.append(match.group(1))
    return {problem: " + ".join(found) for problem, found in names.items() if found}


def _to_line(p: Problem) -> str:
    dtypes = (dtype_name(p.dtype), dtype_name(p.weight_dtype))
    return " ".join([p.op, p.pass_, *dtypes, shape_text(p.shape)])


def _from_line(line: str) -> Problem:
    op, pass_, dtype, weight_dtype, shape = line.split()
    dtypes = (getattr(torch, dtype), getattr(torch, weight_dtype))
    return Problem(op, pass_, *dtypes, tuple(int(size) for size in shape.split("x")))


def _run_once(problem: Problem, device: torch.device) -> None:
    op = cases.all_ops()[problem.op]
    call = op.build("ours", problem.pass_, compiled=lambda f: f)(op.make(problem, device))
    call()


def _child(device: torch.device, lines: Sequence[str]) -> None:
    for i, line in enumerate(lines):
        print(f"{_MARKER}{i}", file=sys.stderr, flush=True)
        with torch.no_grad():
            _run_once(_from_line(line), device)


if __name__ == "__main__":
    _child(torch.device(sys.argv[1]), sys.stdin.read().splitlines())
