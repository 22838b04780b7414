#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Renders the files of benchmarks/results/ as the tables that documents show.

    render_results.py            writes docs/_generated/*.md and the tables inside README.md
    render_results.py --check    fails where README.md differs from what would be written

A Markdown document asks for a table with two lines; the text between them is replaced:

    <!-- results: h200.json shape=16384x8192 dtype=bfloat16 -->
    <!-- /results -->
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from setup_env import ROOT
from transformer_kernels import hardware
from transformer_kernels.bench import (
    analysis,
    area,
    decoding,
    fpga,
    host,
    models,
    parallel,
    predictions,
    profilers,
    race,
    step,
)
from transformer_kernels.bench.levels import show as levels
from transformer_kernels.measure.schema import Result, Row, load
from transformer_kernels.measure.table import render

RESULTS = ROOT / "benchmarks" / "results"
# The stored CPUs, by the beginning of their files' names.
CPUS = ("epyc_avx2", "epyc_avx512", "epyc_zen5", "xeon")
GENERATED = ROOT / "docs" / "_generated"
README = ROOT / "README.md"

REQUEST = re.compile(
    r"^<!-- results: (?P<file>\S+)(?P<filters>(?: \w+=\S+)*) -->\n.*?^<!-- /results -->$",
    re.MULTILINE | re.DOTALL,
)

FIELDS: Mapping[str, Callable[[Row], str]] = {
    "op": lambda row: row.op,
    "pass": lambda row: row.pass_,
    "dtype": lambda row: row.dtype,
    "shape": lambda row: "x".join(map(str, row.shape)),
}


def provenance(result: Result) -> str:
    """The machine, versions and date of the figures, without which a table would be a mere
    claim."""
    if result.area:
        return area.provenance(result)
    machine = result.machine
    parts = [machine.device_name, f"{machine.cores} cores", machine.system]
    parts += [f"driver {machine.driver}"] if machine.driver else []
    versions = [f"{name} {version}" for name, version in sorted(result.versions.items())]
    beside = result.settings.get("beside")
    end = f", beside {beside}" if beside else ""
    return f"Measured {result.date} on {', '.join([*parts, *versions])}{end}."


def keep(result: Result, filters: Iterable[tuple[str, str]]) -> Result:
    rows = list(result.rows)
    for field, wanted in filters:
        if field not in FIELDS:
            raise SystemExit(f"results: filter is {field}, expected one of {', '.join(FIELDS)}")
        rows = [row for row in rows if FIELDS[field](row) in wanted.split(",")]
    return dataclasses.replace(result, rows=rows)


def block(result: Result) -> str:
    return f"```text\n{drawn(result)}\n```\n\n{provenance(result)}\n"


def drawn(result: Result) -> str:
    """The result's table; it shows operations per second where any were counted."""
    if result.area:
        return area.render(result)
    if result.host:
        return host.render(result)
    if result.decoding or result.generating:
        return decoding.render(result)
    if result.parallel:
        return parallel.render(result)
    if result.predictions:
        return predictions.render(result)
    if result.levels:
        return levels.render(result)
    if result.profilers:
        return profilers.render(result)
    if result.array:
        return fpga.render(result, fpga.read_clocks(RESULTS))
    if result.array_models:
        return fpga.render_models(result, fpga.read_clocks(RESULTS))
    if result.model_runs:
        return models.render(result)
    if result.step_parts:
        return step.render(result)
    if result.step_times:
        return race.render(result)
    unit = "tflops" if any(row.tflops is not None for row in result.rows) else "us"
    return render(result, unit=unit)


def page(name: str, result: Result) -> str:
    lines = [f"## {result.machine.device_name} ({name})", ""]
    if result.ceilings is not None:
        products = [
            f"matmul {tflops:.1f} TFLOP/s ({dtype})"
            for dtype, tflops in result.ceilings.all_products.items()
        ]
        copy = f"copy {result.ceilings.copy_gbps:.0f} GB/s"
        lines += [f"Ceilings of the run: {', '.join([copy, *products])}.", ""]
    return "\n".join([*lines, block(result)])


def table(file: Path, filters: str) -> str:
    if not file.exists():
        return f"No {file.name} is stored yet; `make bench` measures your machine.\n"
    pairs = [item.partition("=") for item in filters.split()]
    return block(keep(load(file), [(field, wanted) for field, _, wanted in pairs]))


def filled(text: str, folder: Path = RESULTS) -> str:
    def answer(request: re.Match[str]) -> str:
        head = request[0].split("\n", 1)[0]
        return f"{head}\n{table(folder / request['file'], request['filters'])}<!-- /results -->"

    return REQUEST.sub(answer, text)


# The page of a result, by its kind; the first that fits.
KINDS: tuple[tuple[str, Callable[[Result], Any]], ...] = (
    ("fpga.md", lambda result: result.area),
    ("decoding.md", lambda result: result.decoding),
    ("generating.md", lambda result: result.generating),
    ("parallel.md", lambda result: result.parallel),
    ("fused_predictions.md", lambda result: result.predictions),
    ("levels.md", lambda result: result.levels),
    ("profile.md", lambda result: result.profilers),
    ("models.md", lambda result: result.model_runs),
    ("fused_inference.md", race.is_forward),
    ("fused.md", lambda result: any(row.model.startswith("fused") for row in result.step_times)),
    ("gpt2.md", lambda result: result.step_parts or result.step_times),
    ("fpga_use.md", lambda result: result.array or result.array_models),
    ("results.md", lambda _: True),
)
PAGES = tuple(page for page, _ in KINDS)


def page_of(result: Result) -> str:
    return next(page for page, fits in KINDS if fits(result))


def hardware_page() -> str:
    """The model of a machine predicts the stored results: one card by its own copies and products
    and by what was measured of it alone, the other one by the first one's copies and products, and
    CPUs by rates that are fitted to their ops."""
    cards = [measured_on(f"{card}*") for card in ("h200", "h100")]
    alone = hardware.read(ROOT / "benchmarks" / "hardware" / "h200.json")
    texts = [
        analysis.render(cards[0], cards[0]),
        f"{analysis.machine_table(alone)}\n{analysis.measured_table(cards[0], alone)}",
        analysis.render(cards[1], cards[0]),
    ]
    for name in CPUS:
        results = measured_on(f"{name}_*")
        texts.append(analysis.render(results, results))
    return "\n".join(f"```text\n{text}\n```\n" for text in texts)


def measured_on(pattern: str) -> list[Result]:
    """The stored results with rows of ops in the files of this pattern."""
    results = map(load, sorted(RESULTS.glob(f"{pattern}.json")))
    return [result for result in results if result.rows]


def write_pages() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    pages: dict[str, list[str]] = {name: [] for name in PAGES}
    for path in sorted(RESULTS.glob("*.json")):
        result = load(path)
        name = page_of(result)
        pages[name].append(page(path.stem, result) if name == "results.md" else block(result))
    for name, parts in pages.items():
        (GENERATED / name).write_text("\n".join(parts) or "No result file is stored yet.\n")
    (GENERATED / "hardware.md").write_text(hardware_page())


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tables of the documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    arguments = parser.parse_args()
    wanted = filled(README.read_text())
    if arguments.check:
        same = wanted == README.read_text()
        print(f"[results] README.md is {'up to date' if same else 'older than its results'}")
        return 0 if same else 1
    README.write_text(wanted)
    write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
