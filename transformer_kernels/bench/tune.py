# SPDX-License-Identifier: MIT
"""`transformer-kernels tune` times the products of linear layers and stores the fastest of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations

import torch
from torch import Tensor

from transformer_kernels import _times
from transformer_kernels.bench.console import Progress
from transformer_kernels.measure import table
from transformer_kernels.measure.sweeps import Shape, shape_text
from transformer_kernels.ops.linear import _choice
from transformer_kernels.ops.linear._tuned import Routes, Times
from transformer_kernels.tune import in_turn, measure

OPS = ("linear", "linear_act")
PASSES = ("forward", "both")
_TITLE = "PRODUCTS OF LINEAR LAYERS"
_HEADINGS = [
    ("Product", 40), ("PyTorch", 9), ("Ours", 9), ("by routes", 9), ("fastest", 28),
    ("by rules", 8), ("gain", 6),
]  # fmt: skip
_SUBTITLE = "microseconds per call; numbers of routes are cuBLASLt's algorithms"
_WORDS = {"ours": "Ours", "torch": "PyTorch"}
_LEAST_GAIN = 1.02  # less may be noise


@dataclass(frozen=True)
class Settings:
    device: torch.device
    ops: Sequence[str]
    passes: Sequence[str]
    dtypes: Sequence[torch.dtype]
    shapes: Sequence[Shape]
    conv1d: bool  # whether weights are stored as (terms, columns)
    seconds: float


@dataclass(frozen=True)
class Line:
    """A product with its times, and what the fastest way gains.

    Args:
        timed: the product, as the file of times names it.
        times: of all ways.
        by_rules: the way by rules.
        gain: how much longer the rules' way takes than the fastest; 1 where the rules' stays.
    """

    timed: str
    times: Times
    by_rules: str | Routes
    gain: float = 1.0


def run(settings: Settings, quiet: bool) -> list[Line]:
    """Times the products again, and stores the times of those that another way than the rules'
    makes faster."""
    calls = list(_calls(settings))
    lines = []
    with Progress("timing", len(calls), quiet) as progress:
        for op, pass_, dtype, shape in calls:
            line = _timed(settings, op, pass_ == "both", dtype, shape)
            lines.append(line)
            progress.advance(line.timed)
    return lines


def _calls(settings: Settings) -> Iterator[tuple[str, str, torch.dtype, Shape]]:
    return combinations(settings.ops, settings.passes, settings.dtypes, settings.shapes)


def _timed(
    settings: Settings, op: str, trained: bool, dtype: torch.dtype, shape: Shape
) -> Line:  # fmt: skip
    x, weight = _operands(settings, dtype, shape)
    activated = op == "linear_act"
    reason = _choice.why_not(x, weight, activated=activated)
    if reason is not None:
        raise ValueError(f"{op} {shape_text(shape)}: there is nothing to choose: {reason}")
    with torch.set_grad_enabled(trained):
        x.requires_grad_(trained)
        weight.requires_grad_(trained)
        timed = _choice.timed_as(x, weight, activated=activated)
        chosen = _choice.ask(_choice.Question.RULES, x, weight, activated=activated)
        routes = None if activated else chosen.routes
        by_rules = (routes or "ours") if chosen.ours else "torch"
        times = measure(x, weight, timed, settings.seconds)
        fastest = times.routes if times.fastest == "routed" else times.fastest
        gain = 1.0
        if fastest != by_rules:  # a second look, which no choice among many makes look better
            rules, other = in_turn(x, weight, timed, (by_rules, fastest), settings.seconds)
            gain = rules / other
    machine = _times.machine_of(x.device)
    if gain >= _LEAST_GAIN:
        _times.keep(machine, timed, times.named())
        return Line(timed, times, by_rules, gain)
    _times.drop(machine, timed)
    return Line(timed, times, by_rules)


def _operands(settings: Settings, dtype: torch.dtype, shape: Shape) -> tuple[Tensor, Tensor]:
    rows, terms, columns = shape
    kept = (terms, columns) if settings.conv1d else (columns, terms)
    x = torch.randn(rows, terms, device=settings.device, dtype=dtype)
    weight = torch.randn(*kept, device=settings.device, dtype=dtype) * terms**-0.5
    return x, weight.t() if settings.conv1d else weight


def render(lines: Sequence[Line]) -> str:
    body = [
        [*_cells(line.timed, line.times), _words_of(line.by_rules), f"{line.gain:.2f}x"]
        for line in lines
    ]
    return table.box(_TITLE, _SUBTITLE, _HEADINGS, body)


def render_kept(device: torch.device) -> str:
    """A table of the file's times for this machine and number of threads."""
    here = _times.machine_of(device)
    kept = [
        _cells(timed, Times.of(times))
        for machine, timed, times in _times.records()
        if machine == here and timed.split()[0] in OPS
    ]
    return table.box(_TITLE, f"{_SUBTITLE}; {here}", _HEADINGS[:-2], kept)


def _words_of(way: str | Routes) -> str:
    return _WORDS[way] if isinstance(way, str) else str(way)


def _cells(timed: str, times: Times) -> list[str]:
    figures = [f"{us:.1f}" for us in (times.torch, times.ours)]
    figures.append("-" if times.routed is None else f"{times.routed:.1f}")
    words = _WORDS if times.routed is None else {**_WORDS, "routed": str(times.routes)}
    return [timed, *figures, words[times.fastest]]
