# SPDX-License-Identifier: MIT
"""The pictures of the proposals, each narrow enough for a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes

from transformer_kernels.bench.plots import Plot
from transformer_kernels.bench.proposals import cache, streaming, units
from transformer_kernels.hardware import Hardware
from transformer_kernels.measure import style

_WIDTH, _HEIGHT = 3.4, 2.6  # inches of a panel
_ROLES = ("ours", "torch", "compile", "triton")


def plots(
    sweeps: Sequence[cache.Swept], pipelines: Sequence[streaming.Compared], machine: Hardware
) -> dict[str, Plot]:
    """The pictures by name."""
    return {
        "proposal_cache": Plot(
            "Traffic to memory over the least, by the size of the cache",
            [partial(_traffic, sweep=sweep) for sweep in sweeps], _WIDTH, _HEIGHT,
        ),
        "proposal_units": Plot(
            f"Multipliers in use by exponentials a clock, and by the shape of "
            f"{units.TODAY.multipliers} multipliers, {machine.name}",
            [_exponentials, _shapes], _WIDTH, _HEIGHT,
        ),
        "proposal_streaming": Plot(
            "Cycles and bytes of three operations over those of the pipeline, by keys",
            [partial(_ratio, found=pipelines, what="cycles"),
             partial(_ratio, found=pipelines, what="bytes")], _WIDTH, _HEIGHT,
        ),
    }  # fmt: skip


def _traffic(panel: Axes, sweep: cache.Swept) -> None:
    sizes = cache.sizes_of([sweep])
    lines = {
        "today": [sweep.bytes[size, cache.TODAY] for size in sizes],
        "counted uses": [sweep.proposed(size) for size in sizes],
        "known future": [sweep.bytes[size, cache.BOUND] for size in sizes],
    }
    for (label, line), role, marker in zip(lines.items(), _ROLES, "os^", strict=False):
        over = [value / sweep.least for value in line]
        panel.plot(sizes, over, marker=marker, color=style.COLOURS[role], label=label)
    panel.set(xscale="log", ylim=(0, None), xlabel="MiB", ylabel="traffic over the least")
    panel.set_title(f"{sweep.problem}\n{sweep.pass_}", fontsize=8)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()


def _exponentials(panel: Axes) -> None:
    found = [units.utilization(replace(units.TODAY, exponentials=n)) for n in units.EXPONENTIALS]
    panel.axvline(units.TODAY.exponentials, color=style.COLOURS["copy"], linewidth=0.8)
    labels = [f"{pass_}, D {dim}" for pass_ in units.PASSES for dim in units.DIMS]
    for label, role, line in zip(labels, _ROLES, zip(*found, strict=True), strict=True):
        panel.plot(units.EXPONENTIALS, line, "o-", color=style.COLOURS[role], label=label)
    panel.set(xscale="log", ylim=(0, 1), xlabel="exponentials a clock", ylabel="in use")
    panel.set_xticks(units.EXPONENTIALS, [str(n) for n in units.EXPONENTIALS])
    panel.minorticks_off()


def _shapes(panel: Axes) -> None:
    shapes = [unit for unit in units.SHAPES if unit.multipliers == units.TODAY.multipliers]
    found = [units.utilization(unit) for unit in shapes]
    for role, line in zip(_ROLES, zip(*found, strict=True), strict=True):
        panel.plot(range(len(shapes)), line, "o-", color=style.COLOURS[role])
    panel.set(ylim=(0, 1), ylabel="in use")
    names = [f"{u.grids} of\n{u.rows}x{u.columns}" for u in shapes]
    panel.set_xticks(range(len(shapes)), names, fontsize=7)


def _ratio(panel: Axes, found: Sequence[streaming.Compared], what: str) -> None:
    for role, array in zip(_ROLES, dict.fromkeys(one.array for one in found), strict=False):
        of = [one for one in found if one.array == array]
        ratios = [getattr(one.apart, what) / getattr(one.fused, what) for one in of]
        panel.plot([one.time for one in of], ratios, "o-", color=style.COLOURS[role],
                   label=str(array))  # fmt: skip
    times = sorted({one.time for one in found})
    panel.set(xscale="log", ylim=(0, None), xlabel="keys", ylabel=f"times the {what}")
    panel.set_xticks(times, [str(time) for time in times])
    panel.minorticks_off()
