# SPDX-License-Identifier: MIT
"""Tells what a refused call with weights of other shapes was probably meant to be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, combinations, permutations
from typing import Any

from torch import Tensor

from .._declare_arguments import Given

_WEIGHTS = ("weight", "up_weight", "down_weight")  # gate, up, down
Shape = tuple[int, ...]


def _fit(terms: int, packed: bool, names: Sequence[str], shapes: Sequence[Shape]) -> bool:
    """Whether weights of these shapes multiply rows of ``terms`` numbers."""
    given = dict(zip(names, shapes, strict=True))
    rows, columns = weight = given["weight"]
    hidden = rows // 2 if packed else rows
    down = given.get("down_weight", (0, hidden))
    return columns == terms and given.get("up_weight", weight) == weight and down[1] == hidden


def hint_of_weights(given: Given) -> str:
    """The transposes, or the order, in which the weights fit; empty if there are none."""
    x: Any = given["x"]
    names = [name for name in _WEIGHTS if given.get(name) is not None]
    weights = [given[name] for name in names]
    matrices = all(isinstance(w, Tensor) and w.dim() == 2 for w in weights)
    if not (isinstance(x, Tensor) and x.dim() and matrices and "weight" in names):
        return ""
    shapes = [tuple(w.shape) for w in weights]
    fit = partial(_fit, x.shape[-1], given.get("up_weight", x) is None, names)
    if fit(shapes):
        return ""
    for order in permutations(shapes):
        if fit(order):
            return f"did you mean the weights in the order {', '.join(map(str, order))}?"
    for turned in chain.from_iterable(combinations(names, n + 1) for n in range(len(names))):
        pairs = zip(names, shapes, strict=True)
        if fit([shape[::-1] if name in turned else shape for name, shape in pairs]):
            return f"did you mean {' and '.join(f'{name}.t()' for name in turned)}?"
    return ""
