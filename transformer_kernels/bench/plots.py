# SPDX-License-Identifier: MIT
"""The plots of a result: bandwidth and memory against size, speed-up bars, loss curves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from transformer_kernels.bench import race as steps
from transformer_kernels.bench import step_plots
from transformer_kernels.bench.providers import PROVIDERS
from transformer_kernels.measure import style
from transformer_kernels.measure.schema import Ceilings, LevelPass, Result, Row, Training
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.table import PASS_WORDS, Problem, problems, short_dtype

# Draws into one panel, which can stand alone or beside the plot's others.
Draw = Callable[[Axes], None]

_WIDTH, _HEIGHT, _MAX_COLUMNS = 3.4, 2.6, 3  # of a panel, in inches; panels in a line
_WIDE = 4.8  # a panel that stands alone
_BAR_LINE, _BAR_REST = 0.17, 0.9  # height of a horizontal bar, and of what is around them
_STEP_LINE, _STEP_REST = 0.3, 0.35  # likewise of the bars of models
_RIVALS = tuple(name for name in PROVIDERS if name != "ours")
_BAR_GROUP = 0.8
_TIME_AXIS = 1  # of a shape BxTxHxD
_SAME_SIZE = 4  # problems closer in bytes than this factor are drawn apart by their width
_LABEL_SHARE = 0.1  # of the axis, taken by the label of a tick


@dataclass(frozen=True)
class Plot:
    """Panels of one size under one caption, which share the colours of their lines."""

    caption: str
    panels: Sequence[Draw]
    width: float = _WIDTH
    height: float = _HEIGHT
    columns: int = _MAX_COLUMNS

    @contextmanager
    def figure(self) -> Iterator[Figure]:
        """All panels in one figure, with a legend above them."""
        columns = min(len(self.panels), self.columns)
        rows = math.ceil(len(self.panels) / columns)
        size = (columns * self.width, rows * self.height + 0.4)
        with style.figure(rows, columns, *size) as (drawn, panels):
            for draw, panel in zip(self.panels, panels, strict=False):
                draw(panel)
            for unused in panels[len(self.panels) :]:
                unused.set_axis_off()
            if legend := _legend(panels):
                drawn.legend(
                    list(legend.values()), list(legend), loc="outside upper center",
                    ncols=min(len(legend), 2 * columns),
                )  # fmt: skip
            yield drawn

    def alone(self) -> Iterator[tuple[Figure, dict[str, str]]]:
        """Yields each panel as a figure, and the colours of its lines by their labels."""
        for draw in self.panels:
            with style.figure(1, 1, self.width, self.height) as (drawn, panels):
                draw(panels[0])
                yield drawn, {k: _colour(v) for k, v in _legend(panels).items()}


def _legend(panels: Sequence[Axes]) -> dict[str, Any]:
    """The lines and bars of all panels, by their labels."""
    entries: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    return entries


def _colour(drawn: Any) -> str:
    """The colour of a line, or of bars."""
    found = drawn.patches[0].get_facecolor() if hasattr(drawn, "patches") else drawn.get_color()
    return str(to_hex(found))


def of(result: Result) -> dict[str, Plot]:
    """The plots that the result has data for, by name."""
    found: dict[str, Plot] = {}
    if result.training is not None:
        found["loss"] = loss_curves(result.training)
    if any(row.passes for row in result.levels):
        found["levels"] = levels(result)
    if result.step_times:
        found["race"] = race(result)
    if result.step_parts:
        found["step"] = step(result)
    shown = [row for row in result.rows if row.outputs == "fresh" or row.provider == "copy"]
    for dtype in dict.fromkeys(row.dtype for row in shown):
        rows = [row for row in shown if row.dtype == dtype]
        name = short_dtype(dtype)
        found |= _size_plots(rows, name, result.ceilings)
        if result.busy is None and any(p.speed_up is not None for p in problems(rows)):
            found[f"speedup_{name}"] = speed_ups(rows, name)
    return found


def _size_plots(rows: Sequence[Row], name: str, ceilings: Ceilings | None) -> dict[str, Plot]:
    """Plots against size; ops that arithmetic bounds are drawn against sequence length."""
    found: dict[str, Plot] = {}
    of_bytes = {row.op for row in rows} - {row.op for row in rows if row.tflops is not None}
    moving = [row for row in rows if row.op in of_bytes]
    computing = [row for row in rows if row.tflops is not None and len(row.shape) > _TIME_AXIS + 1]
    if moving:
        found[f"bandwidth_{name}"] = bandwidth(moving, name)
    if computing:
        found[f"tflops_{name}"] = Plot(
            f"TFLOP/s against the length of the sequences, {name}",
            _against_time(computing, "TFLOP/s", _tflops, _matmul(computing, ceilings)),
        )
    counted = [row for row in computing if row.peak_bytes is not None]
    if counted:
        found[f"memory_{name}"] = Plot(
            f"Memory of a call against the length of the sequences, {name}",
            _against_time(counted, "GiB", _peak_gib),
        )
    return found


def _tflops(row: Row) -> float:
    assert row.tflops is not None
    return row.tflops


def _peak_gib(row: Row) -> float:
    assert row.peak_bytes is not None
    return row.peak_bytes / 2**30


def _matmul(rows: Sequence[Row], ceilings: Ceilings | None) -> float | None:
    """The rate of the matrix product in the rows' dtype, which they share."""
    return ceilings.product_tflops(rows[0].dtype) if ceilings is not None else None


def write(result: Result, folder: Path) -> list[Path]:
    paths = []
    for name, plot in of(result).items():
        with plot.figure() as drawn:
            paths += style.save(drawn, folder, name)
    return paths


def bandwidth(rows: Sequence[Row], name: str) -> Plot:
    """A panel per op and pass: GB/s of every provider, under the ceiling of the copy."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.op, row.pass_), []).append(row)
    panels = [partial(_draw_bandwidth, *group, members) for group, members in groups.items()]
    return Plot(f"Bandwidth against bytes moved, {name}", panels)


def _draw_bandwidth(op: str, pass_: str, rows: Sequence[Row], panel: Axes) -> None:
    by_width = max(row.bytes for row in rows) < _SAME_SIZE * min(row.bytes for row in rows)
    size = _width if by_width else _megabytes
    for provider in ("copy", *_RIVALS, "ours"):
        points: dict[float, list[float]] = {}
        for row in rows:
            if row.provider == provider:
                points.setdefault(size(row), []).append(row.gbps)
        if not points:
            continue
        x = sorted(points)
        is_copy = provider == "copy"
        panel.plot(
            x, [geometric_mean(points[at]) for at in x],
            color=style.COLOURS[provider],
            label=style.NAMES[provider],
            linestyle="--" if is_copy else "-",
            marker=None if is_copy else style.MARKERS[provider],
            zorder=3 if provider == "ours" else 2,
        )  # fmt: skip
    _set_log_ticks(panel, sorted({size(row) for row in rows}))
    panel.set_ylim(bottom=0)
    panel.set_xlabel("columns" if by_width else "MB moved")
    panel.set_ylabel("GB/s")
    panel.set_title(f"{op} {pass_}")


def _against_time(
    rows: Sequence[Row], unit: str, value: Callable[[Row], float], ceiling: float | None = None
) -> list[Draw]:
    """A panel per op, pass, heads and head dim: a line per provider over the lengths."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row.op} {row.pass_}, {_heads(row)}", []).append(row)

    def draw(title: str, members: Sequence[Row], panel: Axes) -> None:
        _draw_against_time(panel, members, value)
        if ceiling is not None:
            panel.axhline(
                ceiling, color=style.COLOURS["copy"], linestyle="--", label="Matrix product"
            )
        panel.set_ylim(bottom=0)
        panel.set_ylabel(unit)
        panel.set_title(title, fontsize=8)

    return [partial(draw, title, members) for title, members in groups.items()]


def _draw_against_time(panel: Axes, rows: Sequence[Row], value: Callable[[Row], float]) -> None:
    for provider in (*_RIVALS, "ours"):
        points = sorted(
            (row.shape[_TIME_AXIS], value(row)) for row in rows if row.provider == provider
        )
        if points:
            panel.plot(
                *zip(*points, strict=True),
                color=style.COLOURS[provider],
                label=style.NAMES[provider],
                marker=style.MARKERS[provider],
                zorder=3 if provider == "ours" else 2,
            )
    _set_log_ticks(panel, sorted({row.shape[_TIME_AXIS] for row in rows}))
    panel.set_xlabel("sequence length")


def _heads(row: Row) -> str:
    """The heads of a shape BxTxHxD or BxTxHxHkxD; the number is left out where H x D is
    constant."""
    shared = f"{row.shape[2]}/{row.shape[3]} heads, " if len(row.shape) > 4 else ""
    return f"{shared}D = {row.shape[-1]}"


def _width(row: Row) -> float:
    return row.shape[-1]


def _megabytes(row: Row) -> float:
    return row.bytes / 1e6


def _set_log_ticks(panel: Axes, values: Sequence[float]) -> None:
    """Puts a tick at each value, and a label where there is room for one."""
    panel.set_xscale("log")
    least = _LABEL_SHARE * math.log(max(values) / min(values))
    labels, last = [], -math.inf
    for value in values:
        has_room = math.log(value) - last >= least
        labels.append(_short(value) if has_room else "")
        last = math.log(value) if has_room else last
    panel.set_xticks(values, labels)
    panel.set_xticks([], minor=True)


def _short(value: float) -> str:
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}K"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def speed_ups(rows: Sequence[Row], name: str) -> Plot:
    """A group of bars per op and pass: how many times longer each rival takes."""
    ratios = _speed_ups(problems(rows))
    groups = list(dict.fromkeys(group for group, _ in ratios))
    rivals = [rival for rival in _RIVALS if any(r == rival for _, r in ratios)]

    def draw(panel: Axes) -> None:
        bar = _BAR_GROUP / len(rivals)
        for i, rival in enumerate(rivals):
            at = [g - _BAR_GROUP / 2 + (i + 0.5) * bar for g in range(len(groups))]
            lengths = [ratios.get((group, rival), math.nan) for group in groups]
            bars = panel.barh(
                at, lengths, bar * 0.92, color=style.COLOURS[rival], label=style.NAMES[rival]
            )
            labels = ["" if math.isnan(x) else f"{x:.2f}" for x in lengths]
            panel.bar_label(bars, labels, fontsize=6.5, padding=2)
        panel.axvline(1, color=style.COLOURS["ours"], linewidth=1.2, label="Ours")
        panel.set_yticks(range(len(groups)), [f"{op} {PASS_WORDS[p]}" for op, p in groups])
        panel.tick_params(axis="y", labelsize=7, length=0)
        panel.grid(axis="y", visible=False)
        panel.set_ylim(len(groups) - 0.5, -0.5)  # the first on top
        panel.set_xlabel("time of the rival / time of ours")
        panel.margins(x=0.12)

    height = _BAR_REST + _BAR_LINE * len(groups) * max(len(rivals), 1.3)
    return Plot(
        f"Time of each rival over ours, {name}, geometric mean over the shapes", [draw],
        _WIDE, height,
    )  # fmt: skip


def _speed_ups(lines: Sequence[Problem]) -> dict[tuple[tuple[str, str], str], float]:
    samples: dict[tuple[tuple[str, str], str], list[float]] = {}
    for line in lines:
        if line.ours is None:
            continue
        for rival in _RIVALS:
            if rival in line.rows:
                key = ((line.ours.op, line.ours.pass_), rival)
                ratio = line.rows[rival].median_us / line.ours.median_us
                samples.setdefault(key, []).append(ratio)
    return {key: geometric_mean(values) for key, values in samples.items()}


def race(result: Result) -> Plot:
    """The time and the memory of a training step or a forward pass, a bar for each model."""
    what = f"a {steps.FORWARD}" if steps.is_forward(result) else "a training step"
    panels = step_plots.race(result.step_times, what)
    height = _STEP_REST + _STEP_LINE * len(result.step_times)
    return Plot(f"{what.capitalize()} of {steps.subject(result)}", panels, _WIDE, height, 1)


def step(result: Result) -> Plot:
    """The parts of a training step, with a bar for each model."""
    models = {row.model for row in result.step_parts}
    return Plot(
        f"A training step, part by part: {steps.subject(result)}",
        [partial(step_plots.draw_parts, result.step_parts)],
        _WIDE, _STEP_REST + _STEP_LINE * len(models),
    )  # fmt: skip


def loss_curves(training: Training) -> Plot:
    """Every loss curve, and their differences from the stock curve on a scale of its own."""
    stock, *others = training.runs
    steps = range(1, len(stock.losses) + 1)
    colours = style.colours_of_models([run.name for run in training.runs])

    def losses(panel: Axes) -> None:
        panel.plot(
            steps, stock.losses,
            color=colours[stock.name], label=stock.name, linewidth=3.2, alpha=0.55,
        )  # fmt: skip
        for run in others:
            panel.plot(steps, run.losses, color=colours[run.name], label=run.name, linewidth=1.2)
        panel.set(title="loss", xlabel="step")

    def differences(panel: Axes) -> None:
        panel.axhline(0, color=colours[stock.name], linewidth=1)
        for run in others:
            apart = training.differences(run)
            panel.plot(steps, apart, color=colours[run.name], label=run.name, linewidth=1.2)
        panel.set(title="difference to stock", xlabel="step")
        panel.ticklabel_format(axis="y", scilimits=(-2, 2))

    return Plot("Training loss, stock and with our kernels", [losses, differences], _WIDE)


def levels(result: Result) -> Plot:
    """A panel per figure, with a bar for each level that has it."""
    things = "kernels launched" if result.machine.device == "cuda" else "operators"
    counts = {row.level: row.count_of("both") for row in result.levels}
    counted = {level: count for level, count in counts.items() if count is not None}
    unit = "MB, forward + backward"

    def times(pass_: str, panel: Axes) -> None:
        timed = {row.level: row.time_of(pass_) for row in result.levels}
        _draw_times(panel, {name: time for name, time in timed.items() if time is not None})
        panel.set_title(pass_)

    def launches(panel: Axes) -> None:
        _draw_levels(panel, {name: c.launches for name, c in counted.items()})
        panel.set(title=things, ylabel="forward + backward")

    def moved(panel: Axes) -> None:
        _draw_levels(panel, {name: _mega(c.bytes) for name, c in counted.items()})
        panel.set(title="bytes moved", ylabel=unit)

    def held(panel: Axes) -> None:
        _draw_levels(panel, {name: _mega(c.peak_bytes) for name, c in counted.items()})
        panel.set(title="memory at peak", ylabel=unit)

    passes = [partial(times, pass_) for pass_ in ("forward", "backward", "step")]
    return Plot(
        "One transformer block in five levels: time, launches, bytes, memory",
        [*passes, launches, moved, held],
    )


def _mega(count: int | None) -> float | None:
    return None if count is None else count / 1e6


def _draw_times(panel: Axes, times: dict[str, LevelPass]) -> None:
    """Draws the medians, and lines from the 10th to the 90th percentile."""
    _draw_levels(panel, {level: timed.median_us / 1e3 for level, timed in times.items()})
    for at, timed in enumerate(times.values()):
        panel.vlines(at, timed.p10_us / 1e3, timed.p90_us / 1e3, "#808080", linewidth=1)
    panel.set_ylabel("ms")


def _draw_levels(panel: Axes, figures: Mapping[str, float | None]) -> None:
    """Draws a bar for each level whose figure is known."""
    values = {level: figure for level, figure in figures.items() if figure is not None}
    bars = panel.bar(
        range(len(values)), list(values.values()), _BAR_GROUP,
        color=[style.COLOURS[level] for level in values],
    )  # fmt: skip
    panel.bar_label(bars, [_short(value) for value in values.values()], fontsize=6.5, padding=1)
    names = [re.sub(r"([ .])", r"\1\n", style.NAMES[level]) for level in values]
    panel.set_xticks(range(len(values)), names, fontsize=6.5)
    panel.tick_params(axis="x", length=0)
    panel.grid(axis="x", visible=False)
    panel.margins(y=0.12)
