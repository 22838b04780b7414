# SPDX-License-Identifier: MIT
"""The kinds of arguments that only linear layers have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._errors import (
    ArgumentValueError,
)
from .._declare_arguments import Given, Param, Table


@dataclass(frozen=True)
class Bias(Param):
    """One value for each row of a table, of the dtype of ``x`` or float32.

    The bias of an optional table is checked only if that is given.
    """

    table: str = "weight"
    own_dtype: bool = True

    def elements(self, given: Given) -> tuple[int, str]:
        return given[self.table].shape[0], f"the rows of {self.table}"

    def check(self, op: str, value: Tensor, given: Given) -> None:
        if given[self.table] is not None:
            super().check(op, value, given)


def hidden_features(given: Given) -> int:
    """The rows of ``weight``; half of them if it packs gate and up."""
    rows: int = given["weight"].shape[0]
    return rows // 2 if given.get("up_weight", given) is None else rows


@dataclass(frozen=True)
class Down(Table):
    """A weight whose columns are hidden features."""

    optional: bool = True
    of: str = "x"

    def columns(self, given: Given) -> tuple[int, str]:
        return hidden_features(given), "the hidden features"


def check_activation(op: str, given: Given, activations: int) -> None:
    if not 0 <= given["activation"] < activations:
        raise ArgumentValueError(
            f"{op}: activation is {given['activation']}, expected the number of one"
        )


def is_by_columns(weight: Tensor) -> bool:
    """Whether the numbers of a column are together, and those of a row are not."""
    return weight.stride(0) == 1 and weight.stride(1) > 1


def empty_like_weight(weight: Tensor) -> Tensor:
    """Allocates a gradient for a weight, with columns contiguous where the weight's are."""
    if is_by_columns(weight):
        return weight.new_empty(weight.shape[::-1]).t()
    return weight.new_empty(weight.shape)


def _check_matrix(op: str, name: str, value: Tensor) -> None:
    if value.dim() != 2:
        raise ArgumentValueError(f"{op}: {name} has {value.dim()} dimensions, expected 2")


def numbers_a_row(packed: Tensor) -> int:
    """Numbers per row of a packed weight: one per int8, or two per byte of uint8."""
    return packed.shape[1] * (2 if packed.dtype is torch.uint8 else 1)


SCALES = (torch.float32, torch.float16, torch.bfloat16)
