#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the pictures of the documents from the files of benchmarks/results/.

    render_pictures.py            writes docs/_generated/picture_*.md and README's picture
    render_pictures.py --check    fails where README's picture differs from what would be drawn

A page includes `_generated/picture_NAME.md`, for a NAME of PICTURES.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from render_results import GENERATED, RESULTS
from setup_env import ROOT
from transformer_kernels.bench import analysis, plots, report, steps, steps_plots
from transformer_kernels.bench.proposals import traffic
from transformer_kernels.bench.proposals.report import Report
from transformer_kernels.measure.schema import Result, load


class Picture(NamedTuple):
    """A plot of a result, by the name that :func:`plots.of` gives it."""

    file: str
    figure: str
    ops: tuple[str, ...] = ()  # the ops that it shows; all where there are none


_NORMS = ("layer_norm", "rms_norm", "softmax")
_ATTENTION = ("attention", "causal_attention")
PICTURES = {
    "gpt2_race": Picture("h200_gpt2_race.json", "race"),
    "gpt2_step": Picture("h200_gpt2.json", "step"),
    "gpt2_race_cpu": Picture("epyc_avx512_gpt2_race.json", "race"),
    "gpt2_step_cpu": Picture("xeon_avx512_gpt2.json", "step"),
    "rows": Picture("h200.json", "bandwidth_bf16", _NORMS),
    "rows_speedup": Picture("h200.json", "speedup_bf16", _NORMS),
    "rows_speedup_cpu": Picture("epyc_avx2_2cores.json", "speedup_fp32", _NORMS),
    "attention": Picture("h200_attention.json", "tflops_bf16", _ATTENTION),
    "attention_memory": Picture("h200_attention_memory.json", "memory_bf16", _ATTENTION),
    "attention_speedup_cpu": Picture("epyc_avx512_attention.json", "speedup_fp32", _ATTENTION),
    "levels": Picture("h200_levels.json", "levels"),
}
README_PICTURE = ROOT / "docs" / "pictures" / "gpt2_race.svg"

_RIVALS = ("torch", "transformers", "triton", "flash-attn-4", "liger_kernel")
_TOOL = re.compile(r"<dc:title>(Matplotlib v[\d.]+)")
_SOURCE = re.compile(r"<dc:description>(.*?)</dc:description>")


def shown(picture: Picture, folder: Path = RESULTS) -> Result:
    result = load(folder / picture.file)
    rows = [row for row in result.rows if not picture.ops or row.op in picture.ops]
    return dataclasses.replace(result, rows=rows)


def measured(result: Result) -> str:
    """The machine and the date, and the versions of what ran; the table of the result has all."""
    versions = [f"{name} {result.versions[name]}" for name in _RIVALS if name in result.versions]
    parts = [result.machine.device_name, *versions]
    return f"Measured {result.date[:10]} on {', '.join(parts)}."


def block(name: str, folder: Path = RESULTS) -> str:
    """The picture as an HTML figure, with the machine in its caption."""
    result = shown(PICTURES[name], folder)
    plot = plots.of(result)[PICTURES[name].figure]
    plot = dataclasses.replace(plot, caption=f"{plot.caption}. {measured(result)}")
    return "\n".join(["```{raw} html", report.render_plot(f"picture-{name}", plot), "```", ""])


def proposals_page() -> str:
    """The proposals of hardware for attention, over the stored results of a card."""
    results = [load(path) for path in sorted(RESULTS.glob("h200*.json"))]
    simulated = traffic.load(RESULTS.parent / "proposals" / "cache.json")
    runs = load(RESULTS / "fpga_ops.json").array
    return Report([result for result in results if result.rows], simulated, runs).page()


def steps_page() -> str:
    """Steps of whole models on the two stored cards, and on others."""
    cards = [[load(path) for path in sorted(RESULTS.glob(f"{c}*.json"))] for c in ("h200", "h100")]
    with_rows = [[result for result in results if result.rows] for results in cards]
    machines = [
        (analysis.machine_of(rows, with_rows[0]), results)
        for rows, results in zip(with_rows, cards, strict=True)
    ]
    corrections = steps.Corrections(with_rows[0], machines[0][0])
    found = steps.all_steps()
    corrected = {name: corrections.corrected(step) for name, step in found.items()}
    tables = [
        steps.validation_table(found, machines, corrections),
        steps.ratio_table(corrected, machines),
        steps.what_if_table(corrected, machines[0][0]),
    ]
    drawn = report.render_plot("steps", steps_plots.what_if(corrected, machines[0][0]))
    text = "\n".join(map(str, tables))
    return f"```{{raw}} html\n{drawn}\n```\n\n```text\n{text}\n```\n"


def write_blocks() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        (GENERATED / f"picture_{name}.md").write_text(block(name))
    (GENERATED / "proposals.md").write_text(proposals_page())
    (GENERATED / "steps.md").write_text(steps_page())


def write_readme_picture(path: Path = README_PICTURE) -> None:
    """The description inside names the result that was drawn, by the digest of its fields."""
    picture = PICTURES["gpt2_race"]
    result = shown(picture)
    digest = hashlib.sha256(repr(result).encode()).hexdigest()
    plot = plots.of(result)[picture.figure]
    path.parent.mkdir(parents=True, exist_ok=True)
    with plot.figure() as drawn:
        drawn.suptitle(textwrap.fill(f"{plot.caption}. {measured(result)}", 76), fontsize=7.5)
        source = {"Date": None, "Description": f"{picture.file} sha256:{digest}"}
        drawn.savefig(path, facecolor="white", metadata=source)


def is_fresh(path: Path = README_PICTURE) -> bool:
    """Whether the picture is the one that would be drawn; where another Matplotlib drew it, whose
    paths may differ, whether it was drawn from the same result."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / path.name
        write_readme_picture(wanted)
        new, old = wanted.read_text(), path.read_text() if path.exists() else ""
    if _TOOL.findall(new) == _TOOL.findall(old):
        return new == old
    return _SOURCE.findall(new) == _SOURCE.findall(old)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of the documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    arguments = parser.parse_args()
    place = README_PICTURE.relative_to(ROOT)
    if arguments.check:
        fresh = is_fresh()
        print(f"[pictures] {place} is {'up to date' if fresh else 'older than its result'}")
        return 0 if fresh else 1
    write_readme_picture()
    write_blocks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
