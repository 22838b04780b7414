# SPDX-License-Identifier: MIT
"""Writes one HTML page of figures, tables and machine, which can be read without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from transformer_kernels.bench import host, plots, summary
from transformer_kernels.bench.levels import show
from transformer_kernels.measure import style, table
from transformer_kernels.measure.schema import Result


def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("transformer_kernels.bench"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def render(result: Result) -> str:
    runs = result.training.runs if result.training else []
    return _template("report.html.j2").render(
        result=result,
        colours=style.colours_of_models([run.name for run in runs]),
        figures=[_figure(name, plot) for name, plot in plots.of(result).items()],
        summary=summary.lay_out(result),
        table=table.lay_out(result) if result.rows else None,
        skipped=table.skipped_lines(result),
        level_table=show.lay_out(result) if result.levels else None,
        level_lines=show.lines(result) if result.levels else [],
        host_table=host.lay_out(result) if result.host else None,
    )


def render_plot(name: str, plot: plots.Plot) -> str:
    """A plot as an HTML element, whose caption, legend and panels another page may style."""
    return _template("figure.html.j2").render(figure=_figure(name, plot))


def _figure(name: str, plot: plots.Plot) -> dict[str, Any]:
    """Each panel is a picture of its own, so that the page can place as many as fit in a line."""
    legend: dict[str, str] = {}
    pictures = []
    for drawn, colours in plot.alone():
        legend |= colours
        pictures.append(style.inline_svg(drawn))
    return {
        "name": name, "caption": plot.caption, "width": plot.width, "legend": legend,
        "pictures": pictures,
    }  # fmt: skip


def write(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(result), encoding="utf-8")
