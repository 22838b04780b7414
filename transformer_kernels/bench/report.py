# SPDX-License-Identifier: MIT
"""Writes one HTML page of figures, table and machine, which can be read without a network."""

from __future__ import annotations

from pathlib import Path

import jinja2

from transformer_kernels.bench import host, plots, summary
from transformer_kernels.bench.levels import show
from transformer_kernels.measure import style, table
from transformer_kernels.measure.schema import Result


def render(result: Result) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("transformer_kernels.bench"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    figures = []
    for name, (caption, draw) in plots.figures(result).items():
        with draw() as drawn:
            figures.append({"name": name, "caption": caption, "svg": style.inline_svg(drawn)})
    return environment.get_template("report.html.j2").render(
        result=result,
        figures=figures,
        summary=summary.render(result),
        table=table.render(result) if result.rows else None,
        skipped=table.skipped_lines(result),
        level_table=level_table(result),
        host_table=host.render(result) if result.host else None,
    )


def level_table(result: Result) -> str | None:
    if not result.levels:
        return None
    return "\n".join([show.render(result), *show.lines(result)])


def write(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(result), encoding="utf-8")
