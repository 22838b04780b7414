# SPDX-License-Identifier: MIT
"""Runs the formula of a declared op as a backend, and differentiates both passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch import is_batched, with_autograd
from ._declare import Kernels, Op
from ._declare_arguments import Given, as_tuple, one_or_all
from ._declare_checks import check_values


def formula_inference(op: Op, *arguments: Any) -> Any:
    check_values(op, op.given(arguments))
    return op.formula(*arguments)


def formula_forward(op: Op, *arguments: Any) -> Any:
    values = op.given(arguments)
    values |= zip(op.returned, as_tuple(formula_inference(op, *arguments)), strict=True)
    values |= _statistics_of(op, values)
    return one_or_all([values[name] for name in (*op.returned, *op.saved)])


def _statistics_of(op: Op, values: Given) -> dict[str, Tensor]:
    found = () if op.statistics is None else as_tuple(op.statistics(values))
    return dict(zip(op.saved, found, strict=True))


def saved_again(op: Op, values: Given) -> dict[str, Tensor]:
    """Recomputes the saved results from the tensors that a call keeps."""
    tensors = {argument.name for argument in op.arguments if argument.is_tensor}
    if not tensors <= {*op.kept}:
        return _statistics_of(op, values)
    results = as_tuple(op.raw.forward(*(values[name] for name in op.names)))
    return dict(zip(op.saved, results[len(op.returned) :], strict=True))


def formula_backward(op: Op, *inputs: Any) -> Any:
    if op.gradient is not None:
        return op.gradient(*inputs)
    values = dict(zip(op.backward_inputs, inputs, strict=True))
    with torch.no_grad(), with_autograd():
        return one_or_all(_derive_formula(op, values))


def derive(op: Op, values: dict[str, Any]) -> Sequence[Tensor]:
    """Computes the backward pass by its formula, which can be differentiated again.

    So can the saved tensors that it reads: kernels detach what they save, so it is recomputed.
    """
    if op.gradient is None:
        return _derive_formula(op, values)
    values |= _statistics_of(op, values)
    return as_tuple(op.gradient(*(values[name] for name in op.backward_inputs)))


def _derive_formula(op: Op, values: dict[str, Any]) -> list[Tensor]:
    """Computes the backward pass through autograd of the formula."""
    again = torch.is_grad_enabled()
    given = {name: values.get(name) for name in op.names}
    # Aliases end the graph here, even if one argument was computed from another.
    aliases = {
        name: value.view_as(value)
        if again and value.requires_grad
        else value.detach().requires_grad_()
        for name in op.differentiable
        if (value := given[name]) is not None
    }
    with torch.enable_grad():
        results = as_tuple(op.formula(**{**given, **aliases}))
    wanted = [name for name in aliases if op.is_needed(name, values)]
    incoming = [
        (result, values[f"d{name}"])
        for name, result in zip(op.returned, results, strict=True)
        if result.requires_grad and values[f"d{name}"] is not None
    ]
    gradients = torch.autograd.grad(
        [result for result, _ in incoming],
        [aliases[name] for name in wanted],
        [gradient for _, gradient in incoming],
        create_graph=again,
        materialize_grads=True,
    )
    found = {f"d{n}": g.contiguous() for n, g in zip(wanted, gradients, strict=True)}
    for name, result in zip(op.returned, results, strict=True):
        if values.get(f"need_{name}"):
            found[name] = result.detach()
    return [
        found[name] if name in found else results[0].new_empty(0) for name in op.backward_outputs
    ]


def gradients_of(
    op: Op, kernels: Kernels, values: dict[str, Any], needed: dict[str, bool]
) -> list[Tensor | None]:
    """The gradient of each argument, by the formula if it will be differentiated again. The ops
    inside a composed op bypass the dispatcher, which alone can run batches of gradients."""
    if op.composed is not None and is_batched(*(values[f"d{name}"] for name in op.returned)):
        kernels = op.raw
    values |= {f"need_{name}": False for name in op.returned}
    values |= {name: None for name in op.may_be_absent if name not in values}
    given = [values.get(name) for name in op.names]
    values |= {name: evaluate(*given) for name, evaluate in op.evaluated.items()}
    for flag in set(op.flag_of.values()):
        values[flag] = any(needed[name] for name, of in op.flag_of.items() if of == flag)
    again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if op.gradients is not None and op.gradient is not None:
        backward = op.gradient if again else kernels.backward
        found = op.gradients(backward, values, needed)
        return [found.get(name) for name in op.names]
    if again:
        results: Sequence[Tensor] = derive(op, values)
    else:
        results = as_tuple(kernels.backward(*(values[name] for name in op.backward_inputs)))
    found = dict(zip(op.backward_outputs, results, strict=True))
    found |= {f"d{name}": values[f"d{result}"] for name, result in op.passed.items()}
    return [found[op.gradient_of(name)] if needed[name] else None for name in op.names]
