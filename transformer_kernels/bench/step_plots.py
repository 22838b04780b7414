# SPDX-License-Identifier: MIT
"""Panels of a training step: its time and memory by model, and its time by parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes

from transformer_kernels.bench.step import PARTS
from transformer_kernels.measure import style
from transformer_kernels.measure.schema import StepPart, StepTime

_NAMES = {
    "stock": "PyTorch", "compiled": "torch.compile", "ours": "This package",
    "rewritten": "torch.compile, our backend", "fused": "tfk.fuse",
    "fused, graphs": "tfk.fuse, graphs", "liger": "Liger",
}  # fmt: skip
_PART_COLOURS = dict(
    zip(PARTS, ("#0072b2", "#cc79a7", "#e69f00", "#009e73", "#999999"), strict=True)
)
_BAR = 0.62  # of a line
_LABELLED = 0.09  # of the longest bar: shorter segments have no room for a number


def race(rows: Sequence[StepTime], what: str) -> list[Callable[[Axes], None]]:
    """Two panels with a bar for each model: the time of what was timed, such as a training step,
    and its memory at the peak where that was measured."""
    measured = {row.model: row.peak_bytes for row in rows if row.peak_bytes is not None}
    size, unit = (2**30, "GiB") if max(measured.values()) >= 2**30 else (2**20, "MiB")
    times = [row.median_us / 1e3 for row in rows]
    peaks = [peak / size for peak in measured.values()]
    faster = [f"{times[0] / time:.2f}x as fast" for time in times]
    shares = [f"{100 * peak / peaks[0]:.0f} %" for peak in peaks]
    return [
        partial(_draw_bars, f"{what}, ms", [row.model for row in rows], times, faster),
        partial(_draw_bars, f"its memory at the peak, {unit}", list(measured), peaks, shares),
    ]


def _draw_bars(
    title: str, models: Sequence[str], values: Sequence[float], ratios: Sequence[str], panel: Axes
) -> None:
    """Draws each value with its ratio to the first."""
    colours = style.colours_of_models(models)
    bars = panel.barh(range(len(models)), values, _BAR, color=[colours[name] for name in models])
    labels = [f"{value:.4g}   {ratio}" for value, ratio in zip(values, ratios, strict=True)]
    panel.bar_label(bars, [f"{values[0]:.4g}", *labels[1:]], padding=4)
    _name_lines(panel, models)
    panel.margins(x=0.34)
    panel.set_title(title)


def _name_lines(panel: Axes, models: Sequence[str]) -> None:
    """Names the lines of horizontal bars, from the top down; the bars carry their numbers."""
    panel.set_yticks(range(len(models)), [_NAMES.get(name, name) for name in models])
    panel.invert_yaxis()
    panel.set_xticks([])
    panel.tick_params(axis="y", length=0)
    panel.grid(visible=False)
    panel.spines[["left", "bottom"]].set_visible(False)


def draw_parts(rows: Sequence[StepPart], panel: Axes) -> None:
    """Draws a bar for each model, divided into the parts of its step."""
    models = list(dict.fromkeys(row.model for row in rows))
    times = {(row.model, row.part): row.us / 1e3 for row in rows}
    longest = max(sum(times[model, part] for part in PARTS) for model in models)
    begins = [0.0] * len(models)
    for part in PARTS:
        lengths = [times[model, part] for model in models]
        bars = panel.barh(
            range(len(models)), lengths, _BAR, begins, color=_PART_COLOURS[part], label=part
        )
        labels = [f"{ms:.3g}" if ms >= _LABELLED * longest else "" for ms in lengths]
        panel.bar_label(bars, labels, label_type="center", color="white", fontsize=8)
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    for line, total in enumerate(begins):
        panel.text(total + 0.01 * longest, line, f"{total:.4g}", va="center")
    _name_lines(panel, models)
    panel.margins(x=0.12)
    panel.set_title("a training step, ms")
