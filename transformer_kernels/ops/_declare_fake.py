# SPDX-License-Identifier: MIT
"""The shapes, dtypes and strides of a declared op's results, without data."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._errors import check_same_device
from .._torch import has_undecided_sizes
from ._declare import Op
from ._declare_arguments import as_tuple, one_or_all
from ._declare_checks import check_values


def fake_forward(op: Op, *arguments: Any) -> Any:
    given = op.given(arguments)
    if not has_undecided_sizes(arguments):  # C++ checks these once they are known
        check_values(op, given)
    return one_or_all([op.empty_result(result, given) for result in op.results])


def fake_inference(op: Op, *arguments: Any) -> Any:
    return one_or_all(as_tuple(fake_forward(op, *arguments))[: len(op.returned)])


def fake_backward(op: Op, *inputs: Any) -> Any:
    values = dict(zip(op.backward_inputs, inputs, strict=True))
    anywhere = {argument.name for argument in op.arguments if argument.on_cpu}
    first, *others = (
        v for name, v in values.items() if isinstance(v, Tensor) and name not in anywhere
    )
    check_same_device(op.title_of(values), first, *others)
    results = {result.name: result for result in op.results}

    def empty(name: str) -> Tensor:
        if name in results:
            needed = values[f"need_{name}"]
            return op.empty_result(results[name], values) if needed else first.new_empty(0)
        of = name.removeprefix("d")
        like = values.get(of, first)  # if the argument itself is not read
        if like is None or not op.is_needed(of, values):
            return first.new_empty(0)
        return op.memory[name](values) if name in op.memory else like.new_empty(like.shape)

    return one_or_all([empty(name) for name in op.backward_outputs])
