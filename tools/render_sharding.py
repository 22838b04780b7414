#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the documents' table of the ways in which ops are split between devices,
docs/_generated/sharding.md, from the ways that declarations give for the arguments of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from render_results import GENERATED
from transformer_kernels.ops._declare import Op, Way
from transformer_kernels.ops._declare_arguments import Seed
from transformer_kernels.ops._parallel import ONCE, SUMMED, WHOLE, Joint
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import combinations

_HEADINGS = ("op", "split arguments", "results", "how")
_PLACES = {SUMMED: "`Partial`", WHOLE: "`Replicate`"}


def _place(dim: int) -> str:
    return _PLACES.get(dim) or f"`Shard({-dim})`"


def _grouped(way: Way, names: list[str]) -> str:
    """The placements of tensors, those that are alike together."""
    of: dict[int, list[str]] = {}
    for name in names:
        of.setdefault(way[name], []).append(f"`{name}`")
    return "; ".join(f"{', '.join(alike)} {_place(dim)}" for dim, alike in of.items())


def _how(op: Op, way: Way, given: dict[str, Any]) -> str:
    words = []
    if isinstance(way, Joint):
        words.append("together")
    if once := [name for name, dim in way.items() if dim == ONCE and name in given]:
        words.append(f"{', '.join(f'`{name}`' for name in once)} added by one process")
    if numbers := [name for name in way if isinstance(given.get(name), int)]:
        words.append(f"{', '.join(f'`{name}`' for name in numbers)} divided")
    if any(isinstance(a, Seed) and not a.of_elements for a in op.arguments):
        words.append("not where it draws random numbers")
    return "; ".join(words) or "-"


def _row(op: Op, way: Way, given: dict[str, Any]) -> str:
    tensors = [
        name
        for name, dim in way.items()
        if dim > 0 and name in given and not isinstance(given[name], int)
    ]
    results = [name for name in op.returned if name in way]
    cells = (f"`{op.name}`", _grouped(way, tensors), _grouped(way, results))
    return f"| {' | '.join((*cells, _how(op, way, given)))} |"


def _rows(op: Op) -> Iterator[str]:
    """The ways of all arguments of tests, each once; of ways that differ by arguments that a call
    lacks, the one with the most."""
    found: dict[tuple[Any, ...], tuple[int, str]] = {}
    for values in combinations(op):
        given = {n: v for n, v in values.items() if isinstance(v, (Tensor, int))}
        for way in op.parallel(op, values):
            first = next((name for name in way if name in given), "")
            key = (first, way.get(first), *(way.get(name) for name in op.returned))
            if len(given) > found.get(key, (0, ""))[0]:
                found[key] = len(given), _row(op, way, given)
    return (row for _, row in found.values())


def write_table() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    lines = [f"| {' | '.join(_HEADINGS)} |", f"|{' --- |' * len(_HEADINGS)}"]
    for op in DECLARED.values():
        lines.extend(_rows(op))
    (GENERATED / "sharding.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    write_table()
