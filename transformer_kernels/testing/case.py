# SPDX-License-Identifier: MIT
"""The data of a test case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Results = tuple[Tensor, ...]


@dataclass(frozen=True)
class Problem:
    """One call: differentiable tensors, and the three functions that take them."""

    tensors: tuple[Tensor, ...]
    ours: Callable[..., Any]  # with backend= by keyword
    torch: Callable[..., Any]
    reference: Callable[..., Any]
    term_error: float = 0.0  # of each term of a parameter's gradient, if above the arithmetic's


@dataclass(frozen=True)
class Case:
    """An op with its options; ``build`` makes a problem around a given x."""

    name: str
    build: Callable[[Tensor], Problem]
    min_rank: int = 1

    def __str__(self) -> str:
        return self.name


def as_tuple(result: Any) -> Results:
    return result if isinstance(result, tuple) else (result,)
