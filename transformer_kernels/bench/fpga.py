# SPDX-License-Identifier: MIT
"""Compares ops on the FPGA array's model with the CPU's kernels.

An array's cycles are exact: the model counts them by the formula that the RTL is checked against.
The array's time is modelled as cycles / clock, with the clock that the router reported for the set
on a part; the CPU's time is measured.

    $ transformer-kernels fpga --arrays r2c4d64n256 --mhz 100
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import fpga, functional
from transformer_kernels.measure import machine, schema, table, timing
from transformer_kernels.measure.schema import ArrayModel, ArrayRow, Result

DEFAULT_SETS = ("r2c4d64n256", "r4c16d64n1024")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"  # in a source tree
CLOCKS = "fpga*.json"
_SECONDS = 0.3  # duration of timing a CPU kernel

Call = Callable[[str], Any]  # takes the name of a backend


@dataclass(frozen=True)
class Clock:
    """The clock that the router reported for a set on one part."""

    part: str
    mhz: float


Clocks = dict[str, list[Clock]]  # by set


@dataclass(frozen=True)
class Problem:
    op: str
    shape: str
    call: Call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arrays", nargs="+", default=list(DEFAULT_SETS), metavar="SET",
                        help="parameter sets")  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR",
                        help=f"where {CLOCKS} with the routed clocks stand")  # fmt: skip
    parser.add_argument("--mhz", type=float, help="a clock for all sets, in place of the routed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in this file")


def run(arguments: argparse.Namespace) -> int:
    clocks = read_clocks(arguments.results)
    if arguments.mhz:
        clocks = {name: [Clock("given", arguments.mhz)] for name in arguments.arrays}
    rows = list(measure(arguments.arrays))
    result = machine.new_result(torch.device("cpu"), settings={}, array=rows)
    print(render(result, clocks))
    if arguments.json:
        schema.save(result, arguments.json)
    return 0


def read_clocks(folder: Path) -> Clocks:
    """The routed clocks by set; empty where nothing was routed."""
    clocks: Clocks = {}
    for path in sorted(folder.glob(CLOCKS)):
        for row in json.loads(path.read_text()).get("area", []):
            clocks.setdefault(row["set"], []).append(Clock(row["part"], row["mhz"]))
    return clocks


# ---- what is measured ---------------------------------------------------------------------------


def problems() -> list[Problem]:
    torch.manual_seed(0)
    return [
        _attention((1, 256, 256, 4, 4, 64), causal=False),
        _attention((1, 1024, 1024, 4, 4, 64), causal=True),
        _attention((1, 1, 1024, 8, 2, 64), causal=True),
        _softmax((1024, 1024)),
        _linear((256, 768, 768)),
    ]


def _attention(shape: tuple[int, int, int, int, int, int], causal: bool) -> Problem:
    batch, queries, keys, heads, kv_heads, dim = shape
    q = torch.randn(batch, queries, heads, dim)
    k, v = (torch.randn(batch, keys, kv_heads, dim) for _ in range(2))

    def call(backend: str) -> Tensor:
        out: Tensor = functional.attention(q, k, v, causal=causal, backend=backend)
        return out

    text = f"{queries}x{keys}, {heads}/{kv_heads} heads of {dim}"
    return Problem("attention causal" if causal else "attention", text, call)


def _softmax(shape: tuple[int, int]) -> Problem:
    return Problem("softmax", "x".join(map(str, shape)),
                   partial(_call_softmax, torch.randn(shape)))  # fmt: skip


def _call_softmax(x: Tensor, backend: str) -> Tensor:
    return functional.softmax(x, -1, backend=backend)


def _linear(shape: tuple[int, int, int]) -> Problem:
    rows, cols, outputs = shape
    x, weight = torch.randn(rows, cols), torch.randn(outputs, cols)
    return Problem("linear", f"{rows}x{cols}x{outputs}", partial(_call_linear, x, weight))


def _call_linear(x: Tensor, weight: Tensor, backend: str) -> Tensor:
    return functional.linear(x, weight, backend=backend)


def measure(arrays: Sequence[str]) -> Iterator[ArrayRow]:
    with torch.no_grad():
        for problem in problems():
            wanted = problem.call("auto")
            cpu_us = _cpu_us(problem)
            for name in arrays:
                with on_array(name), fpga.count() as spent:
                    found = problem.call("fpga")
                error = (found - wanted).norm() / wanted.norm()
                yield ArrayRow(
                    problem.op, problem.shape, name, spent.commands, spent.cycles,
                    spent.utilization if spent.useful else None, float(error), cpu_us,
                )  # fmt: skip


def _cpu_us(problem: Problem) -> float:
    timer = timing.WallTimer()
    watch = timer.stopwatch([partial(problem.call, "auto")])
    return timing.interleave({"cpu": watch}, timer, _SECONDS)["cpu"].median


@contextmanager
def on_array(name: str) -> Iterator[None]:
    """Puts the model of this set behind ``backend="fpga"``."""
    wanted = {"TFK_FPGA_ARRAY": name, "TFK_FPGA_TRANSPORT": "model"}
    before = {variable: os.environ.get(variable) for variable in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value


# ---- what is shown ------------------------------------------------------------------------------

_HEADINGS = [
    ("op", 16), ("shape", 28), ("array", 13), ("commands", 8), ("cycles", 10), ("used", 6),
    ("rel. error", 10), ("part", 10), ("MHz", 6), ("modelled us", 11), ("CPU us", 9),
]  # fmt: skip
_MODEL_HEADINGS = [
    ("model", 26), ("in int8", 27), ("array", 13), ("cycles/token", 12), ("used", 6),
    ("against float32", 40), ("part", 10), ("MHz", 6), ("modelled tokens/s", 17),
]  # fmt: skip


def _percent(share: float | None) -> str:
    return table.ABSENT if share is None else f"{100 * share:.1f} %"


def _by_part(clocks: Sequence[Clock], figure: Callable[[Clock], float]) -> list[list[str]]:
    """One line for each part that the set was routed on."""
    lines = [[c.part, f"{c.mhz:.1f}", f"{figure(c):.0f}"] for c in clocks]
    return lines or [[table.ABSENT] * 3]


def render(result: Result, clocks: Clocks) -> str:
    """A table of ops: the array's modelled time and the CPU's measured time."""
    body = []
    for row in result.array:
        figures = [row.op, row.shape, row.array, str(row.commands), str(row.cycles),
                   _percent(row.utilization), f"{row.relative_error:.1e}"]  # fmt: skip
        parts = _by_part(clocks.get(row.array, []), partial(_microseconds, row))
        body += [[*figures, *part, f"{row.cpu_us:.0f}"] for part in parts]
    subtitle = f"array: modelled, {_clock_words(clocks)}; CPU: measured, float32"
    title = f"FPGA ARRAY BESIDE {result.machine.device_name}"
    return table.box(title, subtitle, _HEADINGS, body)


def render_models(result: Result, clocks: Clocks) -> str:
    """A table of models: their accuracy in int8, and the array's modelled speed."""
    body = []
    for row in result.array_models:
        accuracy = ", ".join(f"{_WORDS[name]} {x:.4f}" for name, x in row.accuracy.items())
        figures = [row.model, row.in_int8, row.array, f"{row.cycles_per_token:.0f}",
                   _percent(row.utilization), accuracy]  # fmt: skip
        parts = _by_part(clocks.get(row.array, []), partial(_tokens_per_second, row))
        body += [[*figures, *part] for part in parts]
    subtitle = f"the array's layers alone: modelled, {_clock_words(clocks)}"
    drawn = table.box("TRANSFORMERS ON AN FPGA ARRAY", subtitle, _MODEL_HEADINGS, body)
    return "\n".join([drawn, *_projections(result, clocks)])


def _clock_words(clocks: Clocks) -> str:
    return "cycles / routed clock" if clocks else "no routed clock: `make fpga` gives one"


def _microseconds(row: ArrayRow, clock: Clock) -> float:
    return row.cycles / clock.mhz


def _tokens_per_second(row: ArrayModel, clock: Clock) -> float:
    return clock.mhz * 1e6 / row.cycles_per_token


def _projections(result: Result, clocks: Clocks) -> list[str]:
    """Projected speeds of several arrays in a larger part, which share the heads."""
    lines = [
        f"  {row.model}, {row.in_int8}: {_PROJECTED * _tokens_per_second(row, clock):.0f} tokens/s"
        for row in result.array_models
        for clock in clocks.get(row.array, [])[:1]
    ]
    formula = "arrays * clock / cycles per token"
    head = f"Projection, not a result: {_PROJECTED} such arrays in a larger part, at the same clock"
    return [f"{head} ({formula}):", *lines] if lines else []


_PROJECTED = 8  # arrays
_WORDS = {
    "cosine_least": "cosine >=",
    "cosine_mean": "mean",
    "rank_correlation_mean": "rank correlation",
    "same_nearest": "same nearest",
    "perplexity_float32": "perplexity",
    "perplexity": "->",
}
