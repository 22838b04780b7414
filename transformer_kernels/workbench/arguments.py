# SPDX-License-Identifier: MIT
"""Kinds of arguments of a :class:`Kernel`, with the checks that the library's own ops have.

``Operand`` is a floating-point tensor; ``Rows`` has at least one dimension; ``Like`` has the shape
and dtype of another argument; ``Param`` has one value for each column of another. ``Mask``,
``Indices`` and ``Seed`` are tensors without a gradient. ``Number`` (with bounds), ``Integer`` and
``Flag`` are plain values.
"""

from ..ops._declare_arguments import (
    Argument,
    Flag,
    Indices,
    Integer,
    Like,
    Mask,
    Number,
    Param,
    Rows,
    Seed,
    Table,
)
from ._kernel_op import Operand

__all__ = [
    "Argument",
    "Flag",
    "Indices",
    "Integer",
    "Like",
    "Mask",
    "Number",
    "Operand",
    "Param",
    "Rows",
    "Seed",
    "Table",
]
