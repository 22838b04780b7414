# SPDX-License-Identifier: MIT
"""The result table: a double-line box, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformer_kernels.bench.schema import Ceilings, Result, Row
from transformer_kernels.bench.sweeps import shape_text

TITLE = "TRANSFORMER KERNEL PACK BENCHMARK"
ABSENT = "-"

# Heading and narrowest width of the columns; those of the last providers only where measured.
_KERNEL = ("Kernel", 31)
_PROVIDERS = {
    "torch": ("PyTorch", 7),
    "compile": ("compile", 7),
    "triton": ("Triton", 6),
    "math": ("math", 7),
    "cudnn": ("cuDNN", 7),
    "flash": ("flash", 7),
    "fa3": ("FA3", 7),
    "fa4": ("FA4", 7),
    "liger": ("Liger", 6),
    "quack": ("QuACK", 6),
    "ours": ("Ours", 6),
}
_OPTIONAL_PROVIDERS = ("math", "cudnn", "flash", "fa3", "fa4", "liger", "quack")
_OF_CEILING = ("of ceiling", 10)
_VS_BEST = ("vs best", 7)
_PASS_WORDS = {"forward": "fwd", "backward": "bwd", "both": "fwd+bwd"}
_DTYPE_WORDS = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
_UNITS = {
    "us": "microseconds per call, median; ceiling = a copy of the same bytes",
    "gbps": "GB/s at the median; ceiling = a copy of the same bytes",
    "tflops": "TFLOP/s at the median; ceiling = a matrix product",
}


@dataclass(frozen=True)
class Problem:
    """One line of the table: the providers' rows for one op, pass, dtype and shape."""

    rows: dict[str, Row]

    @property
    def any_row(self) -> Row:
        return next(iter(self.rows.values()))

    @property
    def ours(self) -> Row | None:
        return self.rows.get("ours")

    @property
    def best_rival(self) -> Row | None:
        rivals = [row for name, row in self.rows.items() if name not in ("ours", "copy")]
        return min(rivals, key=lambda row: row.median_us, default=None)

    @property
    def speed_up(self) -> float | None:
        """Time of the best rival over our time."""
        if self.ours is None or self.best_rival is None:
            return None
        return self.best_rival.median_us / self.ours.median_us


def short_dtype(dtype: str) -> str:
    return _DTYPE_WORDS.get(dtype, dtype)


def label(row: Row) -> str:
    name = f"{row.op} {_PASS_WORDS[row.pass_]} {short_dtype(row.dtype)}"
    if row.weight_dtype not in (None, row.dtype):
        name += f"/{short_dtype(str(row.weight_dtype))}"
    return f"{name} {shape_text(row.shape)}"


def problems(rows: Iterable[Row]) -> list[Problem]:
    """Groups the rows by problem, in the order in which they were measured."""
    grouped: dict[object, dict[str, Row]] = {}
    for row in rows:
        if row.outputs == "fresh" or row.provider == "copy":
            grouped.setdefault(row.problem, {})[row.provider] = row
    return [Problem(group) for group in grouped.values()]


def box(
    title: str, subtitle: str, headings: Sequence[tuple[str, int]], body: Sequence[Sequence[str]]
) -> str:
    """Draws the box. The first column is flush left, the others flush right."""
    widths = [
        max([width, len(heading), *(len(line[i]) for line in body)])
        for i, (heading, width) in enumerate(headings)
    ]
    widths[0] += max(0, max(len(title), len(subtitle)) + 2 - _inner(widths))
    inner = _inner(widths)

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "║ " + " │ ".join(padded) + " ║"

    rule = "═" * inner
    parts = [f"╔{rule}╗"]
    parts += [f"║{text.center(inner)}║" for text in (title, subtitle) if text]
    parts += [f"╠{rule}╣", line([heading for heading, _ in headings])]
    if body:
        parts.append("╟" + "┼".join("─" * (width + 2) for width in widths) + "╢")
        parts += [line(cells) for cells in body]
    return "\n".join([*parts, f"╚{rule}╝"])


def _inner(widths: Sequence[int]) -> int:
    """Between the outer edges: a blank on either side of a cell, a rule between two."""
    return sum(widths) + 3 * len(widths) - 1


def render(result: Result, unit: str = "us") -> str:
    lines = problems(result.rows)
    present = {name for problem in lines for name in problem.rows}
    providers = [p for p in _PROVIDERS if p in present or p not in _OPTIONAL_PROVIDERS]
    headings = [_KERNEL, *(_PROVIDERS[p] for p in providers), _OF_CEILING, _VS_BEST]
    title = f"{TITLE} ({result.machine.device_name})"
    body = [_cells(p, providers, unit, result.ceilings) for p in lines]
    return box(title, _UNITS[unit], headings, body)


def of_matmul(row: Row, ceilings: Ceilings | None) -> float | None:
    """The share of the measured matrix product, in percent, where that has the same arithmetic."""
    if ceilings is None or row.tflops is None:
        return None
    has_its_arithmetic = row.dtype == ceilings.matmul_dtype or (
        {row.dtype, ceilings.matmul_dtype} == {"float16", "bfloat16"}
    )
    return 100 * row.tflops / ceilings.matmul_tflops if has_its_arithmetic else None


def _cells(
    problem: Problem, providers: Sequence[str], unit: str, ceilings: Ceilings | None
) -> list[str]:
    ours, share = problem.ours, None
    if ours is not None:
        share = of_matmul(ours, ceilings) if unit == "tflops" else ours.pct_copy
    of_ceiling = f"{share:.1f} %" if share is not None else ABSENT
    vs_best = f"{problem.speed_up:.2f}x" if problem.speed_up is not None else ABSENT
    figures = [_figure(problem.rows.get(provider), unit) for provider in providers]
    return [label(problem.any_row), *figures, of_ceiling, vs_best]


def _figure(row: Row | None, unit: str) -> str:
    values = {} if row is None else {"us": row.median_us, "gbps": row.gbps, "tflops": row.tflops}
    value = values.get(unit)
    if value is None:
        return ABSENT
    if unit == "tflops":
        return f"{value:.3f}"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def skipped_lines(result: Result) -> list[str]:
    """What was not measured, one line per provider and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for skip in result.skipped:
        grouped.setdefault((skip.provider, skip.reason), []).append(skip.problem)
    return [
        f"not measured: {provider} on {found[0]}"
        + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        + f": {reason}"
        for (provider, reason), found in grouped.items()
    ]
