#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the simulation of transformer_kernels.parallel.scaling as a table and a plot,
docs/_generated/scaling.md."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from render_results import GENERATED
from transformer_kernels.bench import report
from transformer_kernels.bench.plots import Plot
from transformer_kernels.measure.table import ABSENT, Table
from transformer_kernels.parallel.scaling import WAYS, Cluster, Way

COUNTS = (8, 64, 1024)
_HEADINGS = [("Way", 18), ("GPUs", 5), ("MB sent each", 12), ("links, us", 10),
             ("computing, us", 13), ("step, us", 10), ("efficiency", 10)]  # fmt: skip


def _cells(name: str, way: Way, cluster: Cluster, ranks: int) -> list[str]:
    if ranks > way.most:
        return [name, str(ranks), *[ABSENT] * 5]
    sent, us = way.traffic(cluster, ranks)
    times = (us, way.computing_us(cluster, ranks), way.us(cluster, ranks))
    rest = [f"{time:,.0f}" for time in times]
    return [
        name, str(ranks), f"{sent / 1e6:,.1f}", *rest, f"{way.efficiency(cluster, ranks):.0%}"
    ]  # fmt: skip


def table(cluster: Cluster) -> Table:
    body = [_cells(name, way, cluster, n) for name, way in WAYS.items() for n in COUNTS]
    subtitle = "forward and backward; - where there are fewer heads or experts than GPUs"
    return Table(f"SCALING ON PAPER ({cluster.gpu.name})", subtitle, _HEADINGS, body)


def reaches(cluster: Cluster) -> list[str]:
    """A table of the examples, and how far each of them scales."""
    lines = ["| way | example | GPUs at 50 % efficiency |", "| --- | --- | --- |"]
    for name, way in WAYS.items():
        reach = way.reach(cluster)
        bound = " (no more heads or experts)" if reach == way.most < max(COUNTS) else ""
        at_least = "at least " if reach == way.most and not bound else ""
        lines.append(f"| {name} | {way.work} | {at_least}{reach}{bound} |")
    return lines


def _draw(axes: Axes, cluster: Cluster, counts: Sequence[int]) -> None:
    for name, way in WAYS.items():
        shown = [n for n in counts if n <= way.most]
        axes.plot(shown, [100 * way.efficiency(cluster, n) for n in shown], label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("efficiency, %")


def plot(cluster: Cluster) -> Plot:
    counts = [2**n for n in range(11)]
    caption = "Efficiency on paper: the share of N times one GPU's speed"
    return Plot(caption, [lambda axes: _draw(axes, cluster, counts)], width=4.8)


def write_page() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    cluster = Cluster()
    drawn = report.render_plot("scaling", plot(cluster))
    lines = [
        *reaches(cluster), "", "```text", str(table(cluster)), "```", "", "```{raw} html", drawn,
        "```", "",
    ]  # fmt: skip
    (GENERATED / "scaling.md").write_text("\n".join(lines))


if __name__ == "__main__":
    write_page()
