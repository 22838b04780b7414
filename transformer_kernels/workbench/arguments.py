# SPDX-License-Identifier: MIT
"""Kinds of arguments of a :class:`Kernel`, each with the checks that the library's own ops have.

``Operand``: a floating-point tensor. ``Rows``: one of at least one dimension. ``Like``: of the
shape and dtype of another. ``Param``: one value for each column of another. ``Mask``, ``Indices``,
``Seed``: tensors without a gradient. ``Number``, with bounds, ``Integer``, ``Flag``.
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
