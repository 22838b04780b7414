# SPDX-License-Identifier: MIT
"""The bars of what other machines would give to whole steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from matplotlib.axes import Axes

from transformer_kernels.bench.plots import Plot
from transformer_kernels.bench.steps import Step, speed_ups
from transformer_kernels.hardware import DATASHEETS, Hardware
from transformer_kernels.measure import style

_WIDTH, _LINE, _REST = 3.4, 0.2, 0.7  # inches: of a panel, of a bar, and of what is around bars


def what_if(steps: Mapping[str, Step], machine: Hardware) -> Plot:
    """A panel for each step: its speed-up on machines with one thing changed, and on other
    cards."""
    found = {name: speed_ups(step, machine) for name, step in steps.items()}
    bars = [partial(_bars, name=name, found=of_step) for name, of_step in found.items()]
    lines = max(map(len, found.values()))
    caption = f"Predicted speed-up of a step over {machine.name}"
    return Plot(caption, bars, _WIDTH, _LINE * lines + _REST)


def _bars(panel: Axes, name: str, found: Mapping[str, float]) -> None:
    names = list(found)[::-1]
    values = [found[other] for other in names]
    roles = ["torch" if other in DATASHEETS else "ours" for other in names]
    panel.barh(names, values, color=[style.COLOURS[role] for role in roles])
    for place, value in enumerate(values):
        panel.text(value, place, f" {value:.2f}x", va="center", fontsize=7)
    panel.axvline(1, color=style.COLOURS["copy"], linewidth=0.8)
    panel.set_title(name, fontsize=9)
    panel.set_xlim(0, 1.2 * max(values))
    panel.tick_params(axis="y", labelsize=7)
    panel.grid(visible=False, axis="y")
