#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the notebooks, each in a fresh kernel; --write stores what they print and draw.

    run_notebooks.py [--write] [notebooks/fusion.ipynb ...]

Stored outputs are small pictures and text. Execution counts and times of cells are left out, so
that a notebook that prints the same differs in nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setup_env import ROOT

FOLDER = ROOT / "notebooks"
MOST_BYTES = 400_000  # of a stored notebook
SECONDS = 300  # for a cell, and for a kernel to start on a busy machine


def execute(path: Path) -> Any:
    """Runs all cells; the first error of one is raised as nbclient's ``CellExecutionError``."""
    import nbclient
    import nbformat
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(ROOT)}}
    with tempfile.TemporaryDirectory() as sockets:  # a free port might be another's by then
        talk = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        client = nbclient.NotebookClient(
            notebook, timeout=SECONDS, startup_timeout=SECONDS, kernel_name="python3",
            resources=resources, record_timing=False, config=Config({"KernelManager": talk}),
        )  # fmt: skip
        return client.execute()


def tidy(notebook: Any) -> Any:
    """Leaves out what changes from run to run, or names the machine's folders."""
    for number, cell in enumerate(c for c in notebook.cells if c.cell_type == "code"):
        cell.execution_count = number + 1
        cell.metadata.pop("execution", None)
        cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number + 1
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def problems(path: Path) -> list[str]:
    """Returns what a stored notebook lacks, or has too much of."""
    import nbformat

    found = []
    if path.stat().st_size > MOST_BYTES:
        found.append(f"{path.name} has {path.stat().st_size} bytes, expected {MOST_BYTES} at most")
    code = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    if not all(cell.execution_count for cell in code):
        found.append(f"{path.name} was not run; call tools/run_notebooks.py --write")
    outputs = [output for cell in code for output in cell.outputs]
    if any(output.output_type == "error" for output in outputs):
        found.append(f"{path.name} holds an error")
    if str(ROOT) in str(outputs):
        found.append(f"{path.name} names the folder of the checkout")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    import nbformat

    parser = argparse.ArgumentParser(description="Run the notebooks.")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    parser.add_argument("paths", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    parsed = parser.parse_args(arguments)
    found: list[str] = []
    for path in parsed.paths:
        start = time.monotonic()
        notebook = execute(path)
        if parsed.write:
            nbformat.write(tidy(notebook), path)
        found += problems(path)
        print(f"[notebooks] {path.name}: {time.monotonic() - start:.0f} s", flush=True)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
