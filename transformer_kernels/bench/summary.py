# SPDX-License-Identifier: MIT
"""One line per op and dtype above a long table: how many times longer PyTorch takes."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_kernels.measure.heap import OUTPUTS
from transformer_kernels.measure.schema import Result
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.table import ABSENT, PASS_WORDS, Table, problems, short_dtype

_TITLE = "SPEED-UP OVER PYTORCH"

Passes = dict[str, list[float]]  # pass -> times of torch over ours, one per problem


def render(result: Result) -> str | None:
    found = lay_out(result)
    return None if found is None else str(found)


def lay_out(result: Result) -> Table | None:
    """Geometric means over shapes, by pass and over all; None where each has one problem, or
    the machine was busy."""
    groups = _speed_ups(result)
    if result.busy is not None or all(len(_all(passes)) < 2 for passes in groups.values()):
        return None
    headings = [("Op", 31), ("problems", 8), *((word, 7) for word in PASS_WORDS.values()),
                ("all", 7)]  # fmt: skip
    body = [_cells(name, passes) for name, passes in groups.items()]
    subtitle = "time of PyTorch over ours, geometric mean"
    return Table(f"{_TITLE} ({result.machine.device_name})", subtitle, headings, body)


def _speed_ups(result: Result) -> dict[str, Passes]:
    groups: dict[str, Passes] = {}
    for problem in (p for outputs in OUTPUTS for p in problems(result.rows, outputs)):
        torch, ours = problem.rows.get("torch"), problem.ours
        if torch is not None and ours is not None:
            reused = " reused" if ours.outputs == "reused" else ""
            passes = groups.setdefault(f"{ours.op} {short_dtype(ours.dtype)}{reused}", {})
            passes.setdefault(ours.pass_, []).append(torch.median_us / ours.median_us)
    return groups


def _cells(name: str, passes: Passes) -> list[str]:
    every = _all(passes)
    means = [_mean(passes.get(pass_, [])) for pass_ in PASS_WORDS]
    return [name, str(len(every)), *means, _mean(every)]


def _all(passes: Passes) -> list[float]:
    return [ratio for ratios in passes.values() for ratio in ratios]


def _mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.2f}x" if ratios else ABSENT
