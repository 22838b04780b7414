# SPDX-License-Identifier: MIT
"""`transformer-kernels tune` of ops whose kernels on the CPU have plans: those are tried in the
passes of the op's case, and shown as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations

import torch

from transformer_kernels import _times
from transformer_kernels.bench.cases import all_ops
from transformer_kernels.bench.console import Progress
from transformer_kernels.measure.case import Case, Problem
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.measure.table import box
from transformer_kernels.plans import Tuned, autotune

_FAMILIES = ("norm/", "pointwise/", "softmax/")
_PRODUCTS = ("packed_linear", "packed_linear_act")
_PASS = {"forward": "forward", "both": "backward"}  # whose plans are tried for a step's pass
_TITLE = "PLANS ON THE CPU"
_HEADINGS = [("Kernel and problem", 48), ("by rule", 13), ("us", 9), ("best other", 13), ("us", 9),
             ("kept", 13)]  # fmt: skip
_SUBTITLE = "microseconds per call and reading of its results; kept is what takes 2 % less, twice"


@dataclass(frozen=True)
class Settings:
    ops: Sequence[str]
    passes: Sequence[str]
    dtypes: Sequence[torch.dtype]
    shapes: str | None  # as text, of every op; the sweeps of each op without it
    sweeps: Sequence[str]
    seconds: float


def planned_ops() -> tuple[str, ...]:
    """The ops of the families whose kernels on the CPU have plans."""
    return tuple(
        name
        for name, case in all_ops().items()
        if name in _PRODUCTS or case.key.startswith(_FAMILIES)
    )


def run(settings: Settings, quiet: bool) -> list[Tuned]:
    """Tries the plans of every call anew, and stores those that win."""
    calls = list(_calls(settings))
    found: list[Tuned] = []
    with Progress("timing", len(calls), quiet) as progress:
        for problem in calls:
            found += _tuned(all_ops()[problem.op], problem, settings.seconds)
            progress.advance(str(problem))
    return found


def _calls(settings: Settings) -> Iterator[Problem]:
    for op, pass_, dtype in combinations(settings.ops, settings.passes, settings.dtypes):
        for shape in _shapes(op, dtype, settings):
            yield Problem(op, _PASS[pass_], dtype, dtype, shape)


def _shapes(op: str, dtype: torch.dtype, settings: Settings) -> list[Shape]:
    grid = all_ops()[op].grid
    if settings.shapes is not None:
        return grid.parse(settings.shapes)
    return grid.shapes_of(settings.sweeps, torch.device("cpu"), dtype)


def _tuned(case: Case, problem: Problem, seconds: float) -> list[Tuned]:
    arguments = case.make(problem, torch.device("cpu"))
    build = case.build("ours", problem.pass_, lambda function: function)
    with torch.set_grad_enabled(problem.pass_ != "forward"):
        call = build(arguments)
    with torch.no_grad():
        return autotune(call, seconds)


def render(found: Sequence[Tuned]) -> str:
    return box(_TITLE, _SUBTITLE, _HEADINGS, [_cells(one) for one in found])


def render_kept() -> str:
    """A table of the plans that the file keeps for this machine and number of threads."""
    here = _times.machine_of(torch.device("cpu"))
    kept = []
    for machine, timed, us in _times.records():
        if machine == here and timed.startswith("plan "):
            best, rule = sorted(us, key=lambda name: us[name])
            kept.append(_cells(Tuned(timed, rule, us, best)))
    return box(_TITLE, f"{_SUBTITLE}; {here}", _HEADINGS, kept)


def _cells(one: Tuned) -> list[str]:
    others = {name: us for name, us in one.us.items() if name != one.rule}
    best = min(others, key=lambda name: others[name], default="-")
    times = [f"{one.us[name]:.1f}" if name in one.us else "-" for name in (one.rule, best)]
    timed = one.timed.removeprefix("plan ")
    return [timed, one.rule, times[0], best, times[1], one.kept or "by rule"]
