# SPDX-License-Identifier: MIT
"""Registers a declared op: its raw ops, autograd, its node in graphs, and its call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._library import check_op, composed_op, direct, public_op, raw_op
from ._array import raw_array_op
from ._declare import Formula, Kernels, Op
from ._declare_arguments import as_tuple, one_or_all
from ._declare_call import make_call
from ._declare_checks import check_described, checked
from ._declare_fake import fake_backward, fake_forward, fake_inference
from ._declare_formula import (
    formula_backward,
    formula_forward,
    formula_inference,
    gradients_of,
    saved_again,
)
from ._declare_raw import register_passes
from ._kinds import is_plain, on_memory, require_memory
from ._work import KINDS

DECLARED: dict[str, Op] = {}


def declare(name: str, **declaration: Any) -> Op:
    """Declares and registers an op; the arguments are the fields of :class:`Op`."""
    return register(Op(name, **declaration))


def register(op: Op) -> Op:
    """Defines the raw ops and the graph node of ``op``, and gives it its ``call``."""
    assert op.gradients is None or op.gradient is not None, "kernels have no derivative"
    assert op.kind in KINDS
    op.raw = _raw_kernels(op)
    op.array = raw_array_op(op) if op.fpga else None
    op.public = define_public(op, fake=partial(fake_inference, op))
    op.call = make_call(op, _direct_kernels(op))
    DECLARED[op.name] = op
    register_passes(op)
    return op


def _direct_kernels(op: Op) -> Kernels:
    if op.composed is not None:
        forward, backward = op.composed
        run = checked(op, forward)
        backward = _on_gradient(op, op.eager_backward or backward)
        return Kernels(run, backward, without_saved(op, run))
    forward, backward = direct(op.raw.forward), direct(op.raw.backward)
    if op.saved and not op.has_inference:
        return Kernels(forward, backward, without_saved(op, forward))
    return Kernels(forward, backward, direct(op.raw.inference))


def _raw_kernels(op: Op) -> Kernels:
    def define(
        schema: str, formula: Formula, fake: Formula, names: tuple[str, ...] = op.names
    ) -> Any:
        run = on_memory(op.title, partial(formula, op), *names)
        return raw_op(schema, reference=run, fake=partial(fake, op))

    if op.composed is not None:
        run, run_backward = op.composed
        run = on_memory(op.title, _without_none(checked(op, run)), *op.names)
        run_backward = on_memory(op.title, _without_none(run_backward), *op.backward_inputs)
        forward = composed_op(op.forward_schema, run, partial(fake_forward, op))
        backward = composed_op(op.backward_schema, run_backward, partial(fake_backward, op))
        return Kernels(forward, backward, without_saved(op, forward) if op.saved else forward)
    forward = define(op.forward_schema, formula_forward, fake_forward)
    op.checks = check_op(op.check_schema, partial(check_described, op))
    inference = forward
    if op.saved and op.has_inference:
        inference = define(op.inference_schema, formula_inference, fake_inference)
    elif op.saved:
        inference = without_saved(op, forward)
    if op.backward_of is not None:
        backward = op.backward_of.raw.backward
    else:
        backward = define(op.backward_schema, formula_backward, fake_backward, op.backward_inputs)
    return Kernels(forward, backward, inference)


def _on_gradient(op: Op, backward: Formula) -> Formula:
    """A backward pass that refuses a gradient without memory. What the call saved has some."""
    name = op.backward_inputs[0]

    def run(gradient: Any, *inputs: Any) -> Any:
        if not is_plain(gradient):
            require_memory(op.title, {name: gradient})
        return backward(gradient, *inputs)

    return run


def _without_none(run: Formula) -> Formula:
    """A pass of a composed op that has a tensor without elements for each result that is None:
    results of a raw op are tensors."""

    def filled(*arguments: Any) -> Any:
        first = next(x for x in arguments if isinstance(x, Tensor))
        results = [first.new_empty(0) if y is None else y for y in as_tuple(run(*arguments))]
        return one_or_all(results)

    return filled


def without_saved(op: Op, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass that returns only the user's results."""
    returned = len(op.returned)

    def inference(*arguments: Any) -> Any:
        return one_or_all(forward(*arguments)[:returned])

    return inference


def define_public(op: Op, fake: Callable[..., Any], **where: Any) -> Any:
    """Defines the op as one node of a graph. The node returns no statistics: its backward pass
    recomputes them."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = {**op.given(inputs), **dict(zip(op.returned, as_tuple(output), strict=True))}
        tensors = {n: v for n, v in values.items() if isinstance(v, Tensor)}
        kept = [name for name in op.kept if name in tensors]
        ctx.save_for_backward(*(tensors[name] for name in kept))
        ctx.kept = kept
        ctx.others = {n: v for n, v in values.items() if n not in tensors}
        ctx.others |= {n: measure(*inputs) for n, measure in op.measured.items()}
        ctx.set_materialize_grads(not op.zeroed)

    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values = dict(zip(ctx.kept, ctx.saved_tensors, strict=True)) | ctx.others
        values |= {f"d{n}": g for n, g in zip(op.returned, gradients, strict=True)}
        for name in op.zeroed:
            if values[f"d{name}"] is None:
                values[f"d{name}"] = torch.zeros_like(values[op.kept_like(name)])
        if op.saved and not torch.is_grad_enabled():
            values |= saved_again(op, {**dict.fromkeys(op.names), **values})
        needed = dict(zip(op.names, ctx.needs_input_grad, strict=True))
        return tuple(gradients_of(op, op.raw, values, needed))

    return public_op(
        op.public_schema,
        impl=op.raw.inference,
        fake=fake,
        setup_context=setup_context,
        backward=backward,
        **where,
    )
