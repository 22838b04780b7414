# SPDX-License-Identifier: MIT
"""The pointwise ops, from their table: activations of one tensor, and as the gate of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.measure.case import Build, Case, Compiler, Function, bind, differentiate
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops.pointwise._ops import GATED, PLAIN
from transformer_kernels.ops.pointwise.table import ACTIVATIONS, Activation
from transformer_kernels.testing.pointwise import exact


def _gated(activation: Callable[[Tensor], Tensor]) -> Function:
    return lambda gate, up: activation(gate) * up


def _ours(op: Op, inputs: int, backend: str) -> Function:
    """Without biases, which none of the others has."""
    absent = (None,) * (len(op.arguments) - inputs)
    return lambda *tensors: op.call(*tensors, *absent, backend)


def _ours_backward(backward: Function, op: Op, inputs: int) -> Function:
    absent = (None,) * (len(op.arguments) - inputs)
    return lambda dy, *tensors: backward(dy, *tensors, *absent, False, False)


def _triton_backward(op: Op, inputs: int) -> Function:
    def run(*tensors: Tensor) -> Any:
        assert op.triton is not None
        return _ours_backward(op.triton().backward, op, inputs)(*tensors)

    return run


def _compiled_backward(function: Function, names: tuple[str, ...]) -> Callable[[Compiler], Build]:
    def backward(dy: Tensor, *tensors: Tensor) -> Any:
        return torch.func.vjp(function, *tensors)[1](dy)

    return lambda compiled: bind(compiled(backward), *names)


def _op(declared: Op, inputs: tuple[str, ...], torchs: Function, reference: Function) -> Case:
    count, read = len(inputs), ("dy", *inputs)
    return Case(
        name=declared.name,
        key=f"pointwise/{declared.name}",
        inputs=inputs,
        parameters=(),
        outputs=("y",),
        backward_reads=read,
        reference=reference,
        save=lambda _: {},
        functions={
            "torch": torchs,
            "ours": _ours(declared, count, "auto"),
            "triton": _ours(declared, count, "triton"),
        },
        backward={
            "torch": differentiate(torchs, inputs, ("dy",)),
            "ours": bind(_ours_backward(declared.raw.backward, declared, count), *read),
            "triton": bind(_triton_backward(declared, count), *read),
        },
        compiled_backward=_compiled_backward(torchs, read),
        gradients=count,
    )


def _plain_op(row: Activation) -> Case:
    return _op(PLAIN[row.name], ("x",), row.formula, exact(row))


def _gated_op(name: str, row: Activation) -> Case:
    return _op(GATED[name], ("gate", "up"), _gated(row.formula), _gated(exact(row)))


OPS = tuple(
    [_plain_op(row) for row in ACTIVATIONS]
    + [_gated_op(row.gated, row) for row in ACTIVATIONS if row.gated]
)
