# SPDX-License-Identifier: MIT
"""Bad arguments: each kind of argument once on every backend, and every argument of every op once
by its form."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import Argument
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import bad, check_refusals, refusal

# These fields of an argument say which others it goes with; its class and the rest are its kind.
_NAMES = {"name", "of", "beside", "draws", "wide"}
# Every argument of every op is given values of a wrong Python type, dtype, device and rank.
_SWEPT = {"text", "complex", "half", "floats", "elsewhere", "one more dimension", "more dimensions"}


def _kind(op: Op, argument: Argument) -> tuple[Any, ...]:
    """The class and the fields by which an argument is checked. One without a class of its own is
    checked by its op."""
    fields = {f.name: getattr(argument, f.name) for f in dataclasses.fields(argument)}
    chosen = tuple(value for name, value in fields.items() if name not in _NAMES)
    own = (op.name, argument.name) if type(argument) is Argument else ()
    return op.checks is not None, type(argument), own, chosen


REPRESENTATIVES = {
    _kind(op, argument): pytest.param(op, argument, id=f"{op.name}-{argument.name}")
    for op in reversed(DECLARED.values())
    for argument in op.arguments
}


@pytest.mark.parametrize(("op", "argument"), REPRESENTATIVES.values())
def test_every_backend_refuses_in_the_same_words(op: Op, argument: Argument) -> None:
    """Everything that may be wrong with an argument of one kind."""
    check_refusals(op, argument)


@pytest.mark.parametrize("op", DECLARED.values(), ids=DECLARED)
def test_every_op_names_itself_and_the_argument(op: Op) -> None:
    """No formula runs: the check before it reads shapes, dtypes and devices alone. C++ makes it
    where the op has kernels."""
    for argument in op.arguments:
        wrong = {what: x for what, x in bad(op, argument).items() if what in _SWEPT}
        assert "text" in wrong
        assert not argument.is_tensor or len(wrong) > 1
        for value in wrong.values():
            refusal(op, argument, value, "reference")
