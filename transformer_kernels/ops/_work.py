# SPDX-License-Identifier: MIT
"""The cost of a pass of an op: its bytes, and the operations of its products.

Costs are computed from tensors by name: arguments, results (``y``), saved results and gradients
(``dx``). An absent name costs nothing, so a call without a weight is cheaper. Tensors need no
memory: they may be on the ``meta`` device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ._declare_arguments import Given

# The kinds of ops, by the resource that bounds them.
PRODUCT, ATTENTION, MEMORY, OPTIMIZER = "product", "attention", "memory", "optimizer"
KINDS = (PRODUCT, ATTENTION, MEMORY, OPTIMIZER)
PASSES = ("forward", "backward")

BytesOf = Callable[[str, Given], int]  # (pass, tensors by name)
FlopsOf = Callable[[str, Given], float | None]


@dataclass(frozen=True)
class Work:
    """The fewest bytes read and written, and the operations of products that count them."""

    bytes: int
    flops: float | None = None


def size_of(x: Any) -> int:
    """The bytes of a tensor; an expanded one is no larger than its memory."""
    if not isinstance(x, Tensor) or not x.numel():
        return 0
    return min(x.nbytes, x.untyped_storage().nbytes())


def sizes_of(given: Given, names: Iterable[str]) -> int:
    """The total bytes of the tensors of these names; absent ones count 0."""
    return sum(size_of(given.get(name)) for name in names)


def rows_of(x: Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1)


def products_with(*weights: str, rows: tuple[str, ...] = ("x", "dy")) -> FlopsOf:
    """Counts the operations of products of an argument's rows with each of the weights.

    A backward pass has a product for each gradient, unless a flag of the call is off. ``rows``
    names tensors with equally many rows, the first present of which is counted.
    """

    def flops(pass_: str, given: Given) -> float:
        count = rows_of(next(given[name] for name in rows if given.get(name) is not None))
        return 2.0 * count * sum(
            given[name].numel() * _products(pass_, name, given)
            for name in weights
            if given.get(name) is not None
        )  # fmt: skip

    return flops


def _products(pass_: str, weight: str, given: Given) -> int:
    """The number of products that involve one weight."""
    if pass_ == "forward":
        return 1
    return int(given.get("need_dx", True)) + int(given.get(f"need_d{weight}", True))
