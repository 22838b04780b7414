# SPDX-License-Identifier: MIT
"""Counters of Nsight Compute (`ncu`) for the CUDA rungs: one launch of each kernel of a rung."""

from __future__ import annotations

import csv
import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from . import rungs
from .rungs import Rung

FILE = "counters.json"
_KERNEL = re.compile(
    r"__global__ void(?:\s+__launch_bounds__\(.+\))?\s+(\w+)\(|@triton\.jit\ndef (\w+)\("
)
_MILLIONS = 1e-6

# A column of a table: the counter of Nsight, and the unit of the column in units of the counter.
_INSTRUCTIONS = {"instructions, millions": ("smsp__inst_executed.sum", _MILLIONS)}
_SECTORS = {
    "sectors loaded, millions": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", _MILLIONS)
}
_DRAM = {"DRAM, % of peak": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1)}
_UNITS = {
    "L2, % of peak": ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed", 1),
    "bank conflicts, millions": ("l1tex__data_bank_conflicts_pipe_lsu.sum", _MILLIONS),
    "tensor cores, % of peak": (
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", 1,
    ),
}  # fmt: skip
_EXPONENTIALS = {
    "exponentials' unit, % of peak": (
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 1,
    ),
}  # fmt: skip
_WARPS = {
    "warps active, %": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "stalls on memory": (
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", 1,
    ),
    "stalls at barriers": ("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", 1),
}  # fmt: skip
COLUMNS = {
    "step1-simple": _INSTRUCTIONS | _SECTORS | _DRAM | _WARPS,
    "step2-reduction": _INSTRUCTIONS | _SECTORS | _DRAM | _WARPS,
    "step3-attention": _INSTRUCTIONS | _SECTORS | _UNITS | _EXPONENTIALS | _WARPS,
    "step4-fused": _INSTRUCTIONS | _SECTORS | _UNITS | _WARPS,
}

Row = dict[str, float]


def kernels(rung: Rung) -> list[str]:
    """The names of a rung's own kernels, without those that fill arrays or measure the ceiling."""
    return [cuda or triton for cuda, triton in _KERNEL.findall(rung.kernel)]


def count(rung: Rung, folder: Path) -> tuple[dict[str, Row], str]:
    """Counts one launch of each kernel of a rung that was built into `folder`.

    Returns:
        A row for each kernel, under the name of the rung, or of rung and kernel where there are
        several; and why there is none, or nothing.
    """
    tool = shlex.split(os.environ.get("NCU", "ncu"))
    if shutil.which(tool[0]) is None:
        return {}, f"{tool[0]} is not installed"
    names = kernels(rung)
    columns = COLUMNS[rung.step]
    options = [
        "--csv", "--print-units", "base", "--metrics", ",".join(of for of, _ in columns.values()),
        "--kernel-name", f"regex:^({'|'.join(names)})$", "--launch-count", str(len(names)),
    ]  # fmt: skip
    try:
        result = subprocess.run([*tool, *options, *rungs.invocation(rung, folder)],
                                capture_output=True, text=True, check=False,
                                timeout=rungs.SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}, f"takes more than {rungs.SECONDS} s"
    found = _read(result.stdout)
    rows = {
        rung.name if len(names) == 1 else f"{rung.name}: {name}": {
            column: round(found[name, of] * unit, 2) for column, (of, unit) in columns.items()
        }
        for name in names
        if all((name, of) in found for of, _ in columns.values())
    }
    return rows, "" if len(rows) == len(names) else _reason(result.stdout + result.stderr)


def _read(text: str) -> dict[tuple[str, str], float]:
    """The values of a report, by kernel and counter; the first launch of a kernel counts."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[tuple[str, str], float] = {}
    for row in csv.DictReader(lines):
        name = re.search(r"(\w+)\s*(?:<.*)?(?:\(.*)?$", row["Kernel Name"])
        if name is not None and re.fullmatch(r"[\d.,]+", row["Metric Value"]):
            value = float(row["Metric Value"].replace(",", ""))
            found.setdefault((name[1], row["Metric Name"]), value)
    return found


def _reason(said: str) -> str:
    lines = said.strip().splitlines() or ["ncu says nothing"]
    return next((line for line in lines if "ERROR" in line), lines[-1])


def store(machine: str, steps: dict[str, dict[str, Row]], folder: Path) -> None:
    """Keeps rows beside those of other steps of the same machine."""
    path = folder / FILE
    before: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    kept = before["steps"] if before.get("machine") == machine else {}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "date": today, "steps": kept | steps}
    path.write_text(json.dumps(found, indent=1) + "\n")
