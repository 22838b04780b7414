# SPDX-License-Identifier: MIT
"""The kinds of arguments and results of an op.

Each kind knows its schema and makes C++'s checks, with the same messages. They run where no C++
does: in composed ops, in a user's own kernels, under a tracer of Python code, and without the
library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._errors import (
    FLOATING,
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    as_integer,
    as_number,
    check_floating,
    check_indices,
    check_known,
    dtype_name,
    not_floating,
    or_float32,
    shape_text,
)
from ._dtype import accumulate_dtype

Given = Mapping[str, Any]  # the arguments of a call by their names


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def one_or_all(results: Sequence[Any]) -> Any:
    """Turns results into a call's return value: one alone, or a tuple of several."""
    return results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True)
class Argument:
    name: str
    optional: bool = False
    on_cpu: bool = False  # whether it may be on the CPU beside tensors on a device
    kind: ClassVar[str] = "Tensor"
    has_rows: ClassVar[bool] = False

    @property
    def schema(self) -> str:
        return f"{self.kind}{'?' if self.optional else ''} {self.name}"

    @property
    def is_tensor(self) -> bool:
        return self.kind == "Tensor"

    def as_declared(self, op: str, value: Any) -> Any:
        """Converts ``value`` to the schema's type; raises, with the argument's name, where that
        fails."""
        if not (isinstance(value, Tensor) or (value is None and self.optional)):
            raise ArgumentTypeError(
                f"{op}: {self.name} is {type(value).__name__}, expected a Tensor"
            )
        return value

    def check(self, op: str, value: Any, given: Given) -> None:
        """Makes C++'s checks of a value that has the right type and is not None."""

    def fold(self, value: Any, x: Tensor, last: int) -> Any:  # noqa: ARG002
        """Reshapes the argument for an ``x`` that keeps its ``last`` dimensions and one before
        them."""
        return value


def _folded(rows: Tensor, last: int) -> Tensor:
    return rows.flatten(0, -last - 1) if rows.dim() else rows.reshape(1)


@dataclass(frozen=True)
class _OfRows(Argument):
    has_rows: ClassVar[bool] = True

    def fold(self, value: Tensor, x: Tensor, last: int) -> Tensor:  # noqa: ARG002
        return _folded(value, last)


@dataclass(frozen=True)
class Rows(_OfRows):
    """A floating-point tensor of any strides; its last dimension holds rows."""

    def check(self, op: str, value: Tensor, given: Given) -> None:  # noqa: ARG002
        check_floating(op, self.name, value)


def check_device(op: str, name: str, value: Tensor, of: Tensor) -> None:
    if value.device != of.device:
        raise ArgumentValueError(f"{op}: {name} is on {value.device}, expected {of.device}")


def _check_dtype(
    op: str, name: str, value: Tensor, of_name: str, of: Tensor, or_wide: bool = False
) -> None:
    wide = accumulate_dtype(of) if or_wide else of.dtype
    if value.dtype not in (of.dtype, wide):
        more = or_float32(of.dtype) if or_wide else ""
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(value.dtype)}, expected {dtype_name(of.dtype)}{more}"
            f" (the dtype of {of_name})"
        )


@dataclass(frozen=True)
class Like(_OfRows):
    """A tensor of the dtype and shape of another argument."""

    of: str = "x"
    or_float32: bool = False  # allowed beside a 16-bit argument

    def check(self, op: str, value: Tensor, given: Given) -> None:
        of = given[self.of]
        check_known(op, self.name, value)
        check_device(op, self.name, value, of)
        _check_dtype(op, self.name, value, self.of, of, self.or_float32)
        if value.shape != of.shape:
            raise ArgumentValueError(
                f"{op}: {self.name} has shape {shape_text(value)}, expected {shape_text(of)}"
                f" (the shape of {self.of})"
            )


@dataclass(frozen=True)
class Table(Argument):
    """A matrix whose rows are looked up. It has the dtype and the columns of the argument ``of``,
    if that is named. An optional table is given with the argument that it is ``beside``, or not at
    all."""

    of: str = ""
    beside: str = ""
    or_float32: bool = False  # allowed beside a 16-bit argument

    def columns(self, given: Given) -> tuple[int, str]:
        """The number of columns that it must have, and a description of it."""
        return given[self.of].shape[-1], f"the last dimension of {self.of}"

    def check(self, op: str, value: Tensor, given: Given) -> None:
        check_floating(op, self.name, value)
        if value.dim() != 2:
            raise ArgumentValueError(f"{op}: {self.name} has {value.dim()} dimensions, expected 2")
        if not self.of:
            return
        of = given[self.of]
        check_device(op, self.name, value, of)
        _check_dtype(op, self.name, value, self.of, of, self.or_float32)
        columns, meaning = self.columns(given)
        if value.shape[1] != columns:
            raise ArgumentValueError(
                f"{op}: {self.name} has {value.shape[1]} columns, expected {columns} ({meaning})"
            )


@dataclass(frozen=True)
class Mask(Argument):
    """Broadcasts to ``x``; holds booleans, or numbers of its dtype or float32."""

    optional: bool = True

    def check(self, op: str, value: Tensor, given: Given) -> None:
        x = given["x"]
        check_known(op, self.name, value)
        check_device(op, self.name, value, x)
        if value.dtype not in (torch.bool, x.dtype, accumulate_dtype(x)):
            more = or_float32(x.dtype)
            raise ArgumentTypeError(
                f"{op}: {self.name} is {dtype_name(value.dtype)}, expected bool"
                f"{',' if more else ' or'} {dtype_name(x.dtype)}{more}"
            )
        rank = value.dim()
        trailing = zip(value.shape, x.shape[x.dim() - rank :], strict=False)
        if rank > x.dim() or not all(size in (1, expected) for size, expected in trailing):
            raise ArgumentValueError(
                f"{op}: {self.name} has shape {shape_text(value)}, expected one that broadcasts to"
                f" {shape_text(x)} (the shape of x)"
            )

    def fold(self, value: Tensor, x: Tensor, last: int) -> Tensor:
        return _folded(value.expand(x.shape), last) if x.dim() else value


@dataclass(frozen=True)
class Param(Argument):
    """One value for each column of another argument, of its dtype or float32.

    One ``beside`` an optional argument is checked only if that is given.
    """

    optional: bool = True
    of: str = "x"
    beside: str = ""
    own_dtype: bool = False  # whether it may have any dtype
    wide: str = ""  # an argument that replaces ``of`` for the dtype if it is wider

    def dtype_like(self, given: Given) -> str:
        of = given[self.of]
        is_wide = self.wide and given[self.wide].dtype is accumulate_dtype(of) is not of.dtype
        return self.wide if is_wide else self.of

    def elements(self, given: Given) -> tuple[int, str]:
        """The number of elements that it must have, and a description of it."""
        return given[self.of].shape[-1], f"the last dimension of {self.of}"

    def check(self, op: str, value: Tensor, given: Given) -> None:
        if self.beside and given[self.beside] is None:
            return
        of = given[self.of]
        check_device(op, self.name, value, of)
        if value.dtype not in FLOATING:
            raise not_floating(op, self.name, value.dtype)
        like = self.dtype_like(given)
        _check_dtype(op, self.name, value, like, given[like], or_wide=True)
        count, meaning = self.elements(given)
        if value.numel() != count:
            raise ArgumentValueError(
                f"{op}: {self.name} has {value.numel()} elements, expected {count} ({meaning})"
            )
        if value.dim() != 1:
            raise ArgumentValueError(f"{op}: {self.name} has {value.dim()} dimensions, expected 1")


@dataclass(frozen=True)
class Seed(Argument):
    """A seed and an offset of random numbers, needed where the probability ``draws`` is between 0
    and 1.

    An element's position in the whole tensor decides whether it is dropped. A shard knows it where
    the numbers are those ``of_elements`` of the first argument, by a formula; other ops that draw
    are not split.
    """

    optional: bool = True
    on_cpu: bool = True
    of: str = "x"
    draws: str = "p"
    of_elements: bool = False

    def check(self, op: str, value: Tensor, given: Given) -> None:
        check_known(op, self.name, value)
        of = given[self.of]
        if value.is_meta:
            check_device(op, self.name, value, of)
        near = value.device.type == "cpu" or value.device == of.device
        two = value.dim() == 1 and value.numel() == 2 and value.is_contiguous()
        if not (near and two and value.dtype is torch.int64):
            raise ArgumentValueError(
                f"{op}: {self.name} is not a seed and an offset, expected 2 int64 on the CPU or"
                f" beside {self.of}"
            )


@dataclass(frozen=True)
class Indices(Argument):
    """Integers, int32 or int64, beside another argument: labels, positions, rows of a table.

    The op's own check decides their shape, or there is one for each row of that argument. The op
    defines the meaning of a number, and which numbers it refuses.
    """

    of: str = "x"
    per_row: bool = False
    beside: str = ""  # an optional argument; both are given, or neither

    def check(self, op: str, value: Tensor, given: Given) -> None:
        of = given[self.of]
        check_indices(op, self.name, value)
        check_device(op, self.name, value, of)
        if self.per_row and value.shape != of.shape[:-1]:
            raise ArgumentValueError(
                f"{op}: {self.name} has shape {shape_text(value)}, expected"
                f" {tuple(of.shape[:-1])} (one for each row of {self.of})"
            )

    def fold(self, value: Tensor, x: Tensor, last: int) -> Tensor:
        if not self.per_row:
            return value
        return value.flatten(0, x.dim() - last - 1) if x.dim() else value


@dataclass(frozen=True)
class Number(Argument):
    """A float, with or without bounds."""

    least: float | None = None
    most: float | None = None  # requires ``least``
    finite: bool = False
    kind: ClassVar[str] = "float"

    def as_declared(self, op: str, value: Any) -> Any:
        return as_number(op, self.name, value)

    def check(self, op: str, value: Any, given: Given) -> None:  # noqa: ARG002
        if self.most is not None and not self.least <= value <= self.most:
            raise ArgumentValueError(
                f"{op}: {self.name} is {value:g}, expected a number from {self.least:g} to"
                f" {self.most:g}"
            )
        if self.least is not None and not value >= self.least:
            raise ArgumentValueError(
                f"{op}: {self.name} is {value:g}, expected a number of {self.least:g} or more"
            )
        if self.finite and not math.isfinite(value):
            raise ArgumentValueError(f"{op}: {self.name} is {value:g}, expected a finite number")


@dataclass(frozen=True)
class Integer(Argument):
    kind: ClassVar[str] = "int"

    def as_declared(self, op: str, value: Any) -> Any:
        return as_integer(op, self.name, value)


@dataclass(frozen=True)
class Flag(Argument):
    kind: ClassVar[str] = "bool"

    def as_declared(self, op: str, value: Any) -> Any:
        return as_flag(op, self.name, value)


@dataclass(frozen=True)
class Result:
    """A tensor that the op returns, on the device of the argument ``like``."""

    name: str
    like: str = "x"
    shape: Callable[[Given], Sequence[int]] | None = None  # default: the shape of ``like``
    saved: bool = False  # only for the backward pass, in the arithmetic's dtype
    has_gradient: bool = True  # integers have none

    def is_alike(self, other: Result) -> bool:
        return (self.like, self.shape, self.saved) == (other.like, other.shape, other.saved)

    def shape_of(self, given: Given) -> Sequence[int]:
        shape: Sequence[int] = given[self.like].shape if self.shape is None else self.shape(given)
        return shape

    def empty(self, given: Given) -> Tensor:
        of: Tensor = given[self.like]
        return of.new_empty(
            self.shape_of(given), dtype=accumulate_dtype(of) if self.saved else of.dtype
        )


def saved_rows(name: str, of: str = "x") -> Result:
    """A statistic of each row, which the backward pass reads."""
    return Result(name, of, lambda given: given[of].shape[:-1], saved=True)
