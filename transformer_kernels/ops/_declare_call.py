# SPDX-License-Identifier: MIT
"""Calls of a declared op: the eager one, whose source is generated, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._errors import MAX_RANK, ArgumentValueError, is_ours, translate
from .._library import log_copy, require_backend
from .._torch import (
    any_autocast,
    eager_apply,
    has_memory,
    is_batched,
    is_eager,
    is_transformed,
    knows_ops_of_others,
)
from ._array import run_on_array
from ._declare import Call, Kernels, Op
from ._declare_arguments import as_tuple, one_or_all
from ._declare_checks import as_declared, check_arguments, check_values, with_hint
from ._declare_formula import formula_inference, gradients_of
from ._declare_kinds import has_kinds, run_kinds
from ._generated import run_source
from ._kinds import refuse_dispatch
from ._promote import promoted, rows_alike

# A loop over arguments would take longer than an eager call, so the source of the call is generated
# for each op as it would be written by hand.
_SOURCE = """\
def make_function(gradients_of, is_grad_enabled, is_compiling, is_batched):
    def forward(ctx, {arguments}, kernels):
        {results} = kernels.forward({arguments}){sizes}{absent}
        ctx.save_for_backward({tensors})
        ctx.others = ({others},)
        return {returned}

    def backward(ctx, {gradients}):
        {tensors}, = ctx.saved_tensors
        {others}, = ctx.others
        {needs}, _ = ctx.needs_input_grad{alone}
        if {indirect}:
            return (*gradients_of(kernels, {values}, {needed}), None)
        {outputs} = kernels.backward({inputs})
        return {chosen}, None

    return forward, backward


def make_call(apply, kernels, recover, run, kinds, promote, is_eager, is_grad_enabled):
    inference = kernels.inference

    def call({arguments}, backend="auto"):
        if backend == "auto" and type({first}) not in kinds and is_eager(){flags_are_bools}:
            try:{promotion}
                if not 0 < {first}.dim() <= {most}:
                    return run(backend, ({arguments},))
                if is_grad_enabled() and ({requires_grad}):
                    return apply({arguments}, kernels)
                return inference({arguments})
            except (RuntimeError, AttributeError, TypeError) as error:
                return recover(error, ({arguments},))
        return run(backend, ({arguments},))

    return call
"""


# C++ refuses rows of two dtypes. Autocast brings them together, and need not wait for the refusal.
_PROMOTION = """
                if any_autocast() and ({mixed}):
                    {arguments} = promote({arguments})"""


def _commas(names: Iterable[str]) -> str:
    return ", ".join(names)


def _lines(statements: Iterable[str]) -> str:
    return "".join(f"\n        {statement}" for statement in statements)


def _dict(pairs: Mapping[str, str]) -> str:
    return "{" + _commas(f"{name!r}: {value}" for name, value in pairs.items()) + "}"


def _source(op: Op) -> str:
    tensors = op.kept
    numbers = [argument.name for argument in op.arguments if not argument.is_tensor]
    numbers += op.sizes
    gradients = [f"d{name}" for name in op.returned]
    needs = {name: f"need_d{name}" for name in op.names}
    absent = [f"d{name}" for name in op.returned if f"d{name}" in op.may_be_absent]
    zeros = []
    for name in op.zeroed:
        zeros += [f"if d{name} is None:", f"    d{name} = torch.zeros_like({op.kept_like(name)})"]
    alone = []
    for result, terms in op.sums.items():
        others = " and ".join(f"d{name} is None" for name in op.returned if name != result)
        passed = [f"d{result}" if name in terms else "None" for name in op.names]
        alone += [f"if {others}:", f"    return {_commas(passed)}, None"]
    inputs = {name: name for name in op.backward_inputs}
    inputs |= {name: "None" for name in op.may_be_absent if name not in absent}
    inputs |= op.expressions
    inputs |= {f"need_{name}": "False" for name in op.returned if f"need_{name}" in inputs}
    for flag in set(op.flag_of.values()):
        inputs[flag] = " or ".join(needs[name] for name, of in op.flag_of.items() if of == flag)
    optional = {argument.name for argument in op.arguments if argument.optional}
    alike = [name for name in rows_alike(op.arguments) if name not in optional]
    mixed = " or ".join(f"{alike[0]}.dtype is not {name}.dtype" for name in alike[1:])
    given = {name: op.gradient_of(name) for name in op.names}
    given |= {name: f"d{result}" for name, result in op.passed.items()}
    return _SOURCE.format(
        arguments=_commas(op.names),
        first=op.names[0],
        most=MAX_RANK,
        promotion=_PROMOTION.format(mixed=mixed, arguments=_commas(op.names)) if mixed else "",
        results=_commas((*op.returned, *op.saved)),
        sizes=_lines(f"{name} = {size}" for name, size in op.sizes.items()),
        absent=_lines(["ctx.set_materialize_grads(False)"] if absent else []),
        alone=_lines(zeros + alone),
        returned=_commas(op.returned),
        tensors=_commas(tensors),
        others=_commas([*numbers, "kernels"]),
        gradients=_commas(gradients),
        needs=_commas(needs.values()),
        values=_dict({name: name for name in (*tensors, *numbers, *gradients)}),
        needed=_dict(needs),
        indirect=" or ".join(
            [
                *(needs[name] for name in op.more),
                "(is_grad_enabled() and not is_compiling())",
                *([f"is_batched({_commas(gradients)})"] if op.composed is not None else []),
            ]
        ),
        outputs=_commas(op.backward_outputs),
        inputs=_commas(inputs.values()),
        chosen=_commas(
            f"{given[name]} if {need} else None"
            if given[name] in (*op.backward_outputs, *gradients)
            else "None"
            for name, need in needs.items()
        ),
        flags_are_bools="".join(
            f" and type({argument.name}) is bool"  # PyTorch accepts numbers for bools
            for argument in op.arguments
            if argument.kind == "bool"
        ),
        requires_grad=" or ".join(
            f"({name} is not None and {name}.requires_grad)"
            if name in optional
            else f"{name}.requires_grad"
            for name in op.differentiable
        ),
    )


def _distinct(arguments: tuple[Any, ...]) -> list[Any]:
    """Aliases repeated tensors: torch.compile loses track of a tensor that a Function takes
    twice."""
    distinct: list[Any] = []
    for value in arguments:
        twice = isinstance(value, Tensor) and any(value is other for other in distinct)
        distinct.append(value.view_as(value) if twice else value)
    return distinct


class _Runner:
    """Runs the calls of an op that are not plain: other backends, graphs, transforms, errors."""

    def __init__(self, op: Op, direct: Kernels, function: Any) -> None:
        self.op = op
        self.direct = direct
        self.apply_in_graph = function.apply
        self.apply = eager_apply(function)
        # Classes of tensors whose calls were recovered: DTensors and jagged ones, which PyTorch
        # refuses late. They are imported by those who use them.
        self.kinds: set[type] = set()

    def run(self, backend: str, arguments: tuple[Any, ...]) -> Any:
        if torch.compiler.is_compiling():
            return self._run(backend, arguments)
        try:
            return self._run(backend, arguments)
        except RuntimeError as error:
            raise self._explained(error, arguments) from None

    def _run(self, backend: str, arguments: tuple[Any, ...]) -> Any:
        op = self.op
        compiling = torch.compiler.is_compiling()
        arguments = as_declared(op, arguments)
        if has_kinds(op, arguments):
            return run_kinds(op, arguments, backend)
        if op.arguments[0].has_rows and not 0 < arguments[0].dim() <= MAX_RANK:
            return self._fold(backend, arguments)
        given = op.given(arguments)
        require_backend(op.title_of(given), backend, arguments[0])
        if backend == "fpga":
            return run_on_array(op, given)
        if backend == "reference" or is_transformed():
            return formula_inference(op, *arguments)
        if backend == "triton":
            if op.triton is None:
                raise ArgumentValueError(
                    f"{op.title_of(given)}: backend is 'triton', expected 'auto' or 'reference'"
                    " (the op has no kernel in Triton)"
                )
            why = "which Triton's kernels cannot read"
            refuse_dispatch(op.title_of(given), given, has_memory, why)
            check_values(op, given)
            kernels = op.triton()
        else:
            kernels = op.raw if compiling else self.direct
        if not torch.is_grad_enabled() or not any(
            isinstance(value, Tensor) and value.requires_grad for value in arguments
        ):
            return kernels.inference(*arguments)
        if torch.compiler.is_exporting() and backend != "triton":
            return op.public(*arguments)
        if compiling:
            return self.apply_in_graph(*_distinct(arguments), kernels)
        return self.apply(*arguments, kernels)

    def recover(self, error: Exception, arguments: tuple[Any, ...]) -> Any:
        """Handles an ``error`` of a plain call: returns the result where another way gives one,
        else raises."""
        op = self.op
        declared = as_declared(op, arguments)
        if has_kinds(op, arguments):
            if has_kinds(op, arguments[:1]):
                self.kinds.add(type(arguments[0]))
            return run_kinds(op, declared, "auto")
        if any(a is not b for a, b in zip(declared, arguments, strict=True)):
            return op.call(*declared)
        raise self._explained(error, arguments) from None

    def _explained(self, error: Exception, arguments: tuple[Any, ...]) -> Exception:
        """Translates an error of C++ into our words and types."""
        given = self.op.given(arguments)
        title = self.op.title_of(given)
        translated = translate(title, error)
        if translated is error and not is_ours(error):
            refuse_dispatch(title, given, knows_ops_of_others, "which does not know this op")
        return with_hint(self.op, given, translated)

    def _fold(self, backend: str, arguments: tuple[Any, ...]) -> Any:
        """Runs rows of no dimension, or of more than C++ takes, as rows of one or two
        dimensions."""
        op, x = self.op, arguments[0]
        given = op.given(arguments)
        if x.dim():
            check_arguments(op, given)
        last = op.last_dims(given)
        folded = [
            value if value is None else argument.fold(value, x, last)
            for argument, value in zip(op.arguments, arguments, strict=True)
        ]
        for name, value in zip(op.names, folded, strict=True):
            log_copy(f"{op.title_of(given)}: {name} has {x.dim()} dimensions", value, given[name])
        leading = x.shape[:-last]

        def unfolded(result: Tensor) -> Tensor:
            return result.reshape((*leading, *result.shape[-last:]) if x.dim() else ())

        return one_or_all([unfolded(result) for result in as_tuple(op.call(*folded, backend))])


def make_call(op: Op, direct: Kernels) -> Call:
    """Makes ``call(*arguments, backend="auto")``."""
    scope = {"torch": torch, "any_autocast": any_autocast}
    generated = run_source(_source(op), f"<declared {op.name}>", scope)
    forward, backward = generated["make_function"](
        partial(gradients_of, op), torch.is_grad_enabled, torch.compiler.is_compiling, is_batched
    )
    camel = op.name.title().replace("_", "")
    passes = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(camel, (torch.autograd.Function,), passes)
    runner = _Runner(op, direct, function)
    call: Call = generated["make_call"](
        runner.apply, direct, runner.recover, runner.run, runner.kinds,
        lambda *arguments: promoted(op.arguments, op.given(arguments)), is_eager,
        torch.is_grad_enabled,
    )  # fmt: skip
    return call
