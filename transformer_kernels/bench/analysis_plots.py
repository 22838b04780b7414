# SPDX-License-Identifier: MIT
"""The pictures of `transformer-kernels analyze`: the roofline, and predicted against measured
times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from transformer_kernels.bench.analysis import Compared
from transformer_kernels.bench.plots import Plot
from transformer_kernels.hardware import Hardware
from transformer_kernels.measure import style

_SIZE = (4.8, 3.6)  # inches
_NEAR = 5  # roofs by which a power of ten is told apart
_COLOURS = {
    "memory": "compile", "products": "ours", "exponentials": "torch", "launches": "copy",
    "operations": "liger", "converted": "onednn", "random": "triton", "pages": "quack",
}  # fmt: skip


def plots(compared: Sequence[Compared], machine: Hardware) -> dict[str, Plot]:
    """The pictures by name; without ops, the roofs alone."""
    width, height = _SIZE
    roofline = Plot(
        f"Operations a second against operations a byte, {machine.name}",
        [lambda panel: _roofline(panel, compared, machine)], width, height,
    )  # fmt: skip
    predicted = Plot(
        f"Predicted against measured time, {machine.name}",
        [lambda panel: _predicted(panel, compared)], width, height,
    )  # fmt: skip
    return {"roofline": roofline, "predicted": predicted} if compared else {"roofline": roofline}


def write(compared: Sequence[Compared], machine: Hardware, folder: Path) -> list[Path]:
    """Draws the pictures into a folder, as SVG and PNG."""
    paths: list[Path] = []
    for name, plot in plots(compared, machine).items():
        with plot.figure() as drawn:
            paths += style.save(drawn, folder, name)
    return paths


def _roofline(panel: Axes, compared: Sequence[Compared], machine: Hardware) -> None:
    """Each pass of an op with arithmetic under the roofs of its products, memory and caches. On a
    card these are the ops in 16 bits."""
    dtypes = tuple(machine.products) if machine.rates else ("bfloat16",)
    points = [
        (one.plan.operations / one.plan.bytes, one.plan.operations / one.row.median_us / 1e6,
         one.row.pass_)
        for one in compared
        if one.plan.operations and (machine.rates or one.row.dtype != "float32")
    ]  # fmt: skip
    for pass_, role in (("forward", "ours"), ("backward", "torch"), ("both", "compile")):
        shown = [(x, y) for x, y, of in points if of == pass_]
        if shown:
            panel.plot(*zip(*shown, strict=True), "o", color=style.COLOURS[role], label=pass_)
    fastest = max([machine.copy_gbps, *machine.copies.values()])
    peaks = {dtype: machine.product_tflops(dtype) for dtype in dtypes}
    ridges = [peak / machine.copy_gbps * 1e3 for peak in peaks.values()]
    intensities = [x for x, _, _ in points] or [max(ridges) * 8]
    for dtype, peak in peaks.items():
        label = "limit" if dtype == dtypes[0] else None
        _roof(panel, peak, fastest, intensities, ":")
        _roof(panel, peak, machine.copy_gbps, intensities, "-", label)
    if not points:
        _name_roofs(panel, peaks, max(ridges))
    panel.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="TFLOP/s")


def _name_roofs(panel: Axes, peaks: Mapping[str, float], at: float) -> None:
    """Writes the dtypes on their roofs; those of about the same height share a line."""
    names: dict[int, list[str]] = defaultdict(list)
    for dtype, peak in peaks.items():
        names[round(_NEAR * math.log10(peak))].append(dtype)
    for near in names.values():
        highest = max(peaks[dtype] for dtype in near)
        panel.annotate(
            ", ".join(near), (at, highest), (0, 3), textcoords="offset points", fontsize="small"
        )


def _roof(
    panel: Axes, peak: float, gbps: float, shown: list[float], line: str, label: str | None = None
) -> None:
    """A roof that covers the operations a byte of all that is shown."""
    ridge = peak / gbps * 1e3
    ends = [min([ridge / 8, *shown]), max([ridge * 8, *shown])]
    roof = [min(peak, x * gbps / 1e3) for x in (ends[0], ridge, ends[1])]
    panel.plot([ends[0], ridge, ends[1]], roof, line, color=style.COLOURS["copy"], label=label)


def _predicted(panel: Axes, compared: Sequence[Compared]) -> None:
    """Every problem, by the resource that bounds it; on the line predictions are exact."""
    for bound, role in _COLOURS.items():
        shown = [one for one in compared if one.prediction.bound == bound]
        if shown:
            panel.plot(
                [one.row.median_us for one in shown], [one.prediction.us for one in shown], "o",
                markersize=3, color=style.COLOURS[role], label=bound,
            )  # fmt: skip
    ends = [f(one.row.median_us for one in compared) for f in (min, max)]
    panel.plot(ends, ends, "-", linewidth=0.8, color=style.COLOURS["copy"])
    panel.set(xscale="log", yscale="log", xlabel="measured us", ylabel="predicted us")
