# SPDX-License-Identifier: MIT
"""The plot of a ladder: the times of its rungs as stairs, and the ceiling that they measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from transformer_kernels.bench.plots import Plot
from transformer_kernels.measure import style

from .rungs import Line
from .show import Ladder

_WIDTH, _HEIGHT = 4.6, 2.6  # in inches


def staircase(step: str, ladder: Ladder) -> Plot | None:
    """The times of the rungs of a step that solve its first rung's problem, or None for one."""
    measured = ladder.lines.get(step, [])
    lines = [line for line in measured if line.problem == measured[0].problem]
    if len(lines) < 2:  # one stair is none
        return None
    caption = f"{step}, {lines[0].problem}, on {ladder.machine} ({ladder.date})"
    return Plot(caption, [partial(_draw, lines)], _WIDTH, _HEIGHT)


def _draw(lines: Sequence[Line], panel: Axes) -> None:
    times = [line.us for line in lines]
    ceiling = min(line.us * line.of_ceiling / 100 for line in lines)
    panel.plot(range(len(times) + 1), [*times, times[-1]], drawstyle="steps-post", linewidth=2,
               color=style.COLOURS["ours"], label="median time")  # fmt: skip
    panel.axhline(ceiling, color=style.COLOURS["copy"], linestyle="--", label="ceiling")
    for at, line in enumerate(lines):
        panel.text(at + 0.5, line.us * 1.1, _time(line.us), ha="center", va="bottom", fontsize=6.5)
    panel.set_yscale("log")
    panel.set_ylim(ceiling / 1.5, max(times) * 2)
    panel.set_ylabel("microseconds")
    names = [line.rung.partition("_")[2].replace("_", " ") for line in lines]
    panel.set_xticks([at + 0.5 for at in range(len(lines))], names, rotation=25, ha="right")
    panel.tick_params(axis="x", labelsize=7, length=0)
    panel.grid(axis="x", visible=False)


def _time(us: float) -> str:
    return f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.0f} us"
