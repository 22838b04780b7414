# SPDX-License-Identifier: MIT
"""The figures of a result: bandwidth and memory against size, speed-up bars, loss curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_kernels.bench.providers import PROVIDERS
from transformer_kernels.measure import style
from transformer_kernels.measure.schema import Ceilings, LevelPass, Result, Row, Training
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.table import Problem, problems, short_dtype

Draw = Callable[[], AbstractContextManager[Figure]]

_PANEL_WIDTH, _PANEL_HEIGHT, _MAX_COLUMNS = 3.4, 2.6, 3
_RIVALS = tuple(name for name in PROVIDERS if name != "ours")
_KERNEL_CURVES = (style.COLOURS["compile"], style.COLOURS["ours"])
_BAR_GROUP = 0.8
_TIME_AXIS = 1  # of a shape BxTxHxD
_SAME_SIZE = 4  # problems closer in bytes than this factor are drawn apart by their width
_LABEL_SHARE = 0.1  # of the axis, taken by the label of a tick


def figures(result: Result) -> dict[str, tuple[str, Draw]]:
    """The figures that the result has data for: name -> (caption, function that draws it)."""
    found: dict[str, tuple[str, Draw]] = {}
    if result.training is not None:
        found["loss"] = (
            "Training loss, stock and with our kernels",
            partial(loss_curves, result.training),
        )
    if any(row.passes for row in result.levels):
        found["levels"] = (
            "One transformer block in five levels: time, launches, bytes, memory",
            partial(levels, result),
        )
    shown = [row for row in result.rows if row.outputs == "fresh" or row.provider == "copy"]
    for dtype in dict.fromkeys(row.dtype for row in shown):
        rows = [row for row in shown if row.dtype == dtype]
        name = short_dtype(dtype)
        found |= _size_figures(rows, name, result.ceilings)
        if any(p.speed_up is not None for p in problems(rows)):
            found[f"speedup_{name}"] = (
                f"Time of each rival over ours, {name}, geometric mean over the shapes",
                partial(speed_ups, rows),
            )
    return found


def _size_figures(
    rows: Sequence[Row], name: str, ceilings: Ceilings | None
) -> dict[str, tuple[str, Draw]]:
    """Figures against size; ops that arithmetic bounds are drawn against sequence length."""
    found: dict[str, tuple[str, Draw]] = {}
    of_bytes = {row.op for row in rows} - {row.op for row in rows if row.tflops is not None}
    moving = [row for row in rows if row.op in of_bytes]
    computing = [row for row in rows if row.tflops is not None and len(row.shape) > _TIME_AXIS + 1]
    if moving:
        found[f"bandwidth_{name}"] = (
            f"Bandwidth against bytes moved, {name}",
            partial(bandwidth, moving),
        )
    if computing:
        found[f"tflops_{name}"] = (
            f"TFLOP/s against the length of the sequences, {name}",
            partial(against_time, computing, "TFLOP/s", _tflops, _matmul(computing, ceilings)),
        )
    counted = [row for row in computing if row.peak_bytes is not None]
    if counted:
        found[f"memory_{name}"] = (
            f"Memory of a call against the length of the sequences, {name}",
            partial(against_time, counted, "GiB", _peak_gib),
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
    for name, (_, draw) in figures(result).items():
        with draw() as drawn:
            paths += style.save(drawn, folder, name)
    return paths


@contextmanager
def bandwidth(rows: Sequence[Row]) -> Iterator[Figure]:
    """A panel per op and pass: GB/s of every provider, under the ceiling of the copy."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.op, row.pass_), []).append(row)
    with _panels(len(groups)) as (drawn, panels):
        for panel, ((op, pass_), members) in zip(panels, groups.items(), strict=False):
            _draw_bandwidth(panel, members)
            panel.set_title(f"{op} {pass_}")
        _share_legend(drawn, panels)
        yield drawn


def _draw_bandwidth(panel: Axes, rows: Sequence[Row]) -> None:
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


@contextmanager
def against_time(
    rows: Sequence[Row], unit: str, value: Callable[[Row], float], ceiling: float | None = None
) -> Iterator[Figure]:
    """A panel per op, pass, heads and head dim: a line per provider over the lengths."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.op, row.pass_, _heads(row)), []).append(row)
    with _panels(len(groups)) as (drawn, panels):
        for panel, ((op, pass_, heads), members) in zip(panels, groups.items(), strict=False):
            _draw_against_time(panel, members, value)
            if ceiling is not None:
                panel.axhline(
                    ceiling, color=style.COLOURS["copy"], linestyle="--", label="Matrix product"
                )
            panel.set_ylim(bottom=0)
            panel.set_ylabel(unit)
            panel.set_title(f"{op} {pass_}, {heads}", fontsize=8)
        _share_legend(drawn, panels)
        yield drawn


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


@contextmanager
def speed_ups(rows: Sequence[Row]) -> Iterator[Figure]:
    """A group of bars per op and pass: how many times longer each rival takes."""
    ratios = _speed_ups(problems(rows))
    groups = list(dict.fromkeys(group for group, _ in ratios))
    rivals = [rival for rival in _RIVALS if any(r == rival for _, r in ratios)]
    width = max(2 * _PANEL_WIDTH, 1.3 * len(groups))
    with style.figure(1, 1, width, 1.2 * _PANEL_HEIGHT) as (drawn, panels):
        panel = panels[0]
        bar = _BAR_GROUP / len(rivals)
        for i, rival in enumerate(rivals):
            at = [g - _BAR_GROUP / 2 + (i + 0.5) * bar for g in range(len(groups))]
            heights = [ratios.get((group, rival), math.nan) for group in groups]
            bars = panel.bar(
                at, heights, bar * 0.92, color=style.COLOURS[rival], label=style.NAMES[rival]
            )
            labels = ["" if math.isnan(h) else f"{h:.2f}" for h in heights]
            panel.bar_label(bars, labels, fontsize=6.5, padding=1)
        panel.axhline(1, color=style.COLOURS["ours"], linewidth=1.2, label="Ours")
        panel.set_xticks(range(len(groups)), [f"{op}\n{pass_}" for op, pass_ in groups])
        panel.tick_params(axis="x", labelsize=8, length=0)
        panel.grid(axis="x", visible=False)
        panel.set_ylabel("time of the rival / time of ours")
        panel.margins(y=0.12)
        _share_legend(drawn, panels)
        yield drawn


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


@contextmanager
def loss_curves(training: Training) -> Iterator[Figure]:
    """Every loss curve, and below it the difference from the stock curve on its own scale."""
    with style.figure(2, 1, 2 * _PANEL_WIDTH, 1.6 * _PANEL_HEIGHT) as (drawn, (above, below)):
        stock, *others = training.runs
        steps = range(1, len(stock.losses) + 1)
        above.plot(
            steps, stock.losses,
            color=style.COLOURS["torch"], label=stock.name, linewidth=3.2, alpha=0.55,
        )  # fmt: skip
        for run, colour in zip(others, itertools.cycle(_KERNEL_CURVES)):
            above.plot(steps, run.losses, color=colour, label=run.name, linewidth=1.2)
            below.plot(steps, training.differences(run), color=colour)
        above.set_ylabel("loss (nats per byte)")
        above.legend()
        below.set_ylabel("difference to stock")
        below.set_xlabel("step")
        below.ticklabel_format(axis="y", scilimits=(-2, 2))
        yield drawn


@contextmanager
def levels(result: Result) -> Iterator[Figure]:
    """One panel per figure, with a bar for each level that has it."""
    things = "kernels launched" if result.machine.device == "cuda" else "operators"
    counts = {row.level: row.count_of("both") for row in result.levels}
    counted = {level: count for level, count in counts.items() if count is not None}
    unit = "MB, forward + backward"
    with _panels(2 * _MAX_COLUMNS) as (drawn, panels):
        for panel, pass_ in zip(panels, ("forward", "backward", "step"), strict=False):
            times = {row.level: row.time_of(pass_) for row in result.levels}
            _draw_times(panel, {name: timed for name, timed in times.items() if timed is not None})
            panel.set_title(pass_)
        launches, moved, held = panels[_MAX_COLUMNS:]
        _draw_levels(launches, {name: c.launches for name, c in counted.items()})
        launches.set(title=things, ylabel="forward + backward")
        _draw_levels(moved, {name: _mega(c.bytes) for name, c in counted.items()})
        moved.set(title="bytes moved", ylabel=unit)
        _draw_levels(held, {name: _mega(c.peak_bytes) for name, c in counted.items()})
        held.set(title="memory at peak", ylabel=unit)
        yield drawn


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
    names = [style.NAMES[level].replace(" ", "\n") for level in values]
    panel.set_xticks(range(len(values)), names, fontsize=6.5)
    panel.tick_params(axis="x", length=0)
    panel.grid(axis="x", visible=False)
    panel.margins(y=0.12)


@contextmanager
def _panels(count: int) -> Iterator[tuple[Figure, list[Axes]]]:
    columns = min(count, _MAX_COLUMNS)
    rows = math.ceil(count / columns)
    size = (columns * _PANEL_WIDTH, rows * _PANEL_HEIGHT + 0.4)
    with style.figure(rows, columns, *size) as (drawn, panels):
        for unused in panels[count:]:
            unused.set_axis_off()
        yield drawn, panels


def _share_legend(drawn: Figure, panels: Sequence[Axes]) -> None:
    """Draws one legend above all panels."""
    entries: dict[str, Artist] = {}
    for panel in panels:
        drawn_handles, drawn_labels = panel.get_legend_handles_labels()
        entries |= dict(zip(drawn_labels, drawn_handles, strict=True))
    handles, labels = list(entries.values()), list(entries)
    drawn.legend(handles, labels, loc="outside upper center", ncols=len(entries))
