# SPDX-License-Identifier: MIT
"""The result table: a double-line box, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from transformer_kernels.measure.schema import Ceilings, Result, Row
from transformer_kernels.measure.sweeps import shape_text

TITLE = "TRANSFORMER KERNEL PACK BENCHMARK"
ABSENT = "-"

# Heading and least width of each column.
_KERNEL = ("Kernel", 31)
_PROVIDERS = {
    "torch": ("PyTorch", 7),
    "foreach": ("foreach", 7),
    "compile": ("compile", 7),
    "triton": ("Triton", 6),
    "math": ("math", 7),
    "cudnn": ("cuDNN", 7),
    "flash": ("flash", 7),
    "flex": ("Flex", 7),
    "fa3": ("FA3", 7),
    "fa4": ("FA4", 7),
    "liger": ("Liger", 6),
    "quack": ("QuACK", 6),
    "quack_tuned": ("QuACK tuned", 11),
    "cublaslt": ("cuBLASLt", 8),
    "segments": ("sorted", 7),
    "pyg": ("PyG", 7),
    "onednn": ("oneDNN", 7),
    "llama": ("llama.cpp", 9),
    "packed": ("packed", 7),
    "ours": ("Ours", 6),
}
_OF_CEILING = ("of ceiling", 10)
_VS_BEST = ("vs best", 7)
PASS_WORDS = {"forward": "fwd", "backward": "bwd", "both": "fwd+bwd"}
_DTYPE_WORDS = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
_UNITS = {
    "us": "microseconds per call, median",
    "gbps": "GB/s at the median",
    "tflops": "TFLOP/s at the median",
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
    def computes(self) -> bool:
        """Whether arithmetic bounds the op, rather than memory."""
        return any(row.tflops is not None for row in self.rows.values())

    @property
    def best_rival(self) -> Row | None:
        rivals = [row for name, row in self.rows.items() if name not in ("packed", "ours", "copy")]
        return min(rivals, key=lambda row: row.median_us, default=None)

    @property
    def speed_up(self) -> float | None:
        """Time of the best rival divided by our time."""
        if self.ours is None or self.best_rival is None:
            return None
        return self.best_rival.median_us / self.ours.median_us


def short_dtype(dtype: str) -> str:
    return _DTYPE_WORDS.get(dtype, dtype)


def label(row: Row) -> str:
    name = f"{row.op} {PASS_WORDS[row.pass_]} {short_dtype(row.dtype)}"
    if row.weight_dtype not in (None, row.dtype):
        name += f"/{short_dtype(str(row.weight_dtype))}"
    reused = " reused" if row.outputs == "reused" and row.provider != "copy" else ""
    return f"{name} {shape_text(row.shape)}{reused}"


def problems(rows: Iterable[Row], outputs: str = "fresh") -> list[Problem]:
    """Groups the rows by problem, in the order in which they were measured."""
    grouped: dict[object, dict[str, Row]] = {}
    for row in rows:
        belongs = outputs == "fresh" if row.provider == "copy" else row.outputs == outputs
        if belongs:
            grouped.setdefault(row.problem, {})[row.provider] = row
    return [Problem(group) for group in grouped.values()]


@dataclass(frozen=True)
class Table:
    """Lines of text under headings, each with the least width of its column."""

    title: str
    subtitle: str
    headings: Sequence[tuple[str, int]]
    body: Sequence[Sequence[str]]

    def filled(self) -> Table:
        """The table without the columns that have no value in any line."""
        kept = [
            i == 0 or any(line[i] != ABSENT for line in self.body)
            for i in range(len(self.headings))
        ]
        headings, body = (
            list(compress(self.headings, kept)), [list(compress(x, kept)) for x in self.body]
        )  # fmt: skip
        return replace(self, headings=headings, body=body)

    def __str__(self) -> str:
        """Draws a box. The first column is aligned left, the others right; a column without any
        value is left out."""
        table = self.filled()
        widths = [
            max([width, len(heading), *(len(line[i]) for line in table.body)])
            for i, (heading, width) in enumerate(table.headings)
        ]
        widths[0] += max(0, max(len(self.title), len(self.subtitle)) + 2 - _inner(widths))
        inner = _inner(widths)

        def line(cells: Sequence[str]) -> str:
            padded = [cells[0].ljust(widths[0])]
            padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
            return "║ " + " │ ".join(padded) + " ║"

        rule = "═" * inner
        parts = [f"╔{rule}╗"]
        parts += [f"║{text.center(inner)}║" for text in (self.title, self.subtitle) if text]
        parts += [f"╠{rule}╣", line([heading for heading, _ in table.headings])]
        if table.body:
            parts.append("╟" + "┼".join("─" * (width + 2) for width in widths) + "╢")
            parts += [line(cells) for cells in table.body]
        return "\n".join([*parts, f"╚{rule}╝"])


def box(
    title: str, subtitle: str, headings: Sequence[tuple[str, int]], body: Sequence[Sequence[str]]
) -> str:
    """Draws a :class:`Table`."""
    return str(Table(title, subtitle, headings, body))


def _inner(widths: Sequence[int]) -> int:
    """The width between the outer edges: cells with a blank on either side, and a rule between
    two."""
    return sum(widths) + 3 * len(widths) - 1


def render(result: Result, unit: str = "us") -> str:
    return str(lay_out(result, unit))


def lay_out(result: Result, unit: str = "us") -> Table:
    """A line for each problem. Those with reused outputs stand at the end, where we measured
    them."""
    reused = problems(result.rows, "reused")
    lines = problems(result.rows) + [problem for problem in reused if problem.ours]
    headings = [_KERNEL, *_PROVIDERS.values(), _OF_CEILING, _VS_BEST]
    title = f"{TITLE} ({result.machine.device_name})"
    body = [_cells(problem, unit, result.ceilings) for problem in lines]
    if result.busy is not None:
        body = [[*cells[:-2], ABSENT, ABSENT] for cells in body]
    return Table(title, f"{_UNITS[unit]}; {_ceiling_words(lines)}", headings, body)


def _ceiling_words(lines: Sequence[Problem]) -> str:
    ceilings = {True: "a matrix product", False: "a copy of the same bytes"}
    if {problem.computes for problem in lines} == {False, True}:
        return f"ceiling = {ceilings[False]}, or {ceilings[True]} of as many operations"
    return f"ceiling = {ceilings[bool(lines) and lines[0].computes]}"


def of_matmul(row: Row, ceilings: Ceilings | None) -> float | None:
    """The share of the measured matrix product's rate, in percent; None where its dtype was not
    measured."""
    if ceilings is None or row.tflops is None:
        return None
    product = ceilings.product_tflops(row.dtype)
    return 100 * row.tflops / product if product is not None else None


def _cells(problem: Problem, unit: str, ceilings: Ceilings | None) -> list[str]:
    ours, share = problem.ours, None
    if ours is not None:
        share = of_matmul(ours, ceilings) if problem.computes else ours.pct_copy
    of_ceiling = f"{share:.1f} %" if share is not None else ABSENT
    vs_best = f"{problem.speed_up:.2f}x" if problem.speed_up is not None else ABSENT
    figures = [_figure(problem.rows.get(provider), unit) for provider in _PROVIDERS]
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
    """One line per provider and reason for what was not measured."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for skip in result.skipped:
        grouped.setdefault((skip.provider, skip.reason), []).append(skip.problem)
    return [
        f"not measured: {provider} on {found[0]}"
        + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        + f": {reason}"
        for (provider, reason), found in grouped.items()
    ]
