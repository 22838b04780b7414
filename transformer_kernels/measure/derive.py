# SPDX-License-Identifier: MIT
"""Derives a benchmark case from the declaration of its op: the functions of torch, torch.compile,
Triton and our kernels, the inputs of the backward pass, and the cost of a pass.

A case names its operands by the names of the op's arguments, and fixes all other arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Compiler,
    Function,
    Part,
    UnsupportedError,
    bind,
    differentiate,
)
from transformer_kernels.measure.sweeps import SWEEPS, Grid, OfModel, Shape
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import Flag, as_tuple

Values = Mapping[str, Any]
_FEW_ROWS = 16


def whole(_: Arguments) -> Part:
    """Verifies whole tensors, for ops whose rows depend on each other."""
    return lambda _, tensor: tensor


def grid(
    forms: str,
    *sizes: int,
    fits: Callable[[Shape], bool] = lambda _: True,
    of_model: OfModel | None = None,
    **sweeps: Any,
) -> Grid:
    """A grid of shapes with that many sizes. A sweep is a list, a dict of lists by type of device,
    or a function."""

    def sweep(shapes: Any) -> Callable[[torch.device, torch.dtype], list[Shape]]:
        if callable(shapes):
            return shapes
        if isinstance(shapes, Mapping):
            return lambda device, _: list(shapes[device.type])
        return lambda *_: list(shapes)

    return Grid(
        forms=forms,
        fold=lambda shape: shape if len(shape) in sizes and fits(shape) else None,
        sweeps={name: sweep(sweeps[name]) for name in SWEEPS},
        of_model=of_model,
    )


# ---- calls --------------------------------------------------------------------------------------


def by_place(function: Function, takes: Sequence[str], names: Sequence[str], fixed: Values) -> Any:
    """Compiles a function of the tensors ``takes`` that calls ``function`` with the arguments
    ``names`` and does nothing else, because it is timed."""
    scope = {"function": function, **{f"_{name}": fixed.get(name) for name in names}}
    given = ", ".join(name if name in takes else f"_{name}" for name in names)
    return eval(f"lambda {', '.join(takes)}: function({given})", scope)


def triton_backward(op: Op) -> Function:
    """Triton's backward pass, which is imported by the first call."""

    def run(*arguments: Any) -> Any:
        assert op.triton is not None
        return op.triton().backward(*arguments)

    return run


def _values(fixed: Values, arguments: Arguments) -> dict[str, Any]:
    """Tensors and numbers by name; a number may be given as a function of the tensors."""
    numbers = {n: v(arguments) if callable(v) else v for n, v in fixed.items()}
    return {**numbers, **arguments}


def _reads(op: Op, operands: Sequence[str], fixed: Values, arguments: Arguments) -> list[Any]:
    """The inputs of the backward pass; flags ask for all gradients, and for no recomputed
    result."""
    values = _values(fixed, arguments)
    given = [values.get(name) for name in op.names]
    values |= {n: make(*given) for n, make in (op.evaluated | op.measured).items()}
    for flag in (name for name in op.backward_inputs if name.startswith("need_")):
        asked = op.flags.get(flag, (flag.removeprefix("need_d"),))
        values[flag] = not {*asked}.isdisjoint(operands)
    return [values.get(name) for name in op.backward_inputs]


def backward(op: Op, operands: Sequence[str], fixed: Values, kernel: Function) -> Build:
    """Builds the backward pass of the raw op, which returns the operands' gradients first."""
    order = [op.backward_outputs.index(name) for name in _gradients(op, operands)]
    in_order = order == list(range(len(order)))

    def build(arguments: Arguments) -> Call:
        call = partial(kernel, *_reads(op, operands, fixed, arguments))
        pick = itemgetter(*order)
        return call if in_order else lambda: pick(call())

    return build


def _gradients(op: Op, operands: Sequence[str]) -> list[str]:
    """The gradients of operands that the backward pass returns, each once."""
    found = dict.fromkeys(op.gradient_of(name) for name in operands)
    return [name for name in found if name in op.backward_outputs]


def _save(op: Op, fixed: Values, arguments: Arguments) -> Arguments:
    """Runs the forward pass, and returns the results that the backward pass reads."""
    names = [r.name for r in op.results if r.name in op.backward_inputs]
    if not names:
        return {}
    values = _values(fixed, arguments)
    results = as_tuple(op.raw.forward(*(values.get(name) for name in op.names)))
    made = dict(zip((*op.returned, *op.saved), results, strict=True))
    return {name: made[name] for name in names}


def compiled_vjp(
    function: Function, cotangents: Sequence[str], operands: Sequence[str], constants: int = 0
) -> Callable[[Compiler], Build]:
    """Compiles the backward pass of ``function`` to one graph; the last operands may be
    ``constants``."""
    results, last = len(cotangents), len(operands) - constants

    def run(*tensors: Tensor) -> Any:
        gradients, given = tensors[:results], tensors[results:]
        of_first = function if not constants else lambda *first: function(*first, *given[last:])
        dy = gradients if results > 1 else gradients[0]
        return torch.func.vjp(of_first, *given[:last])[1](dy)

    return lambda compiled: bind(compiled(run), *cotangents, *operands)


def without(case: Case, provider: str) -> Case:
    """The case without one provider."""

    def others(of: Mapping[str, Any]) -> dict[str, Any]:
        return {who: run for who, run in of.items() if who != provider}

    return replace(case, functions=others(case.functions), backward=others(case.backward))


def no_compiled_backward(name: str) -> Callable[[Compiler], Build]:
    def refuse(_: Compiler) -> Build:
        raise UnsupportedError(f"compile has no {name} backward")

    return refuse


# ---- costs --------------------------------------------------------------------------------------


def _named(op: Op, pass_: str, operands: Sequence[str], tensors: Values, fixed: Values) -> Values:
    """The tensors of a pass by the declaration's names; gradients are as large as their
    operands."""
    results = {name: tensors[f"d{name}"] for name in op.returned if f"d{name}" in tensors}
    gradients = {f"d{name}": tensors[name] for name in operands if pass_ == "backward"}
    numbers = {name: x for name, x in fixed.items() if not isinstance(x, Tensor)}
    return {**dict.fromkeys(op.names), **results, **_values(numbers, dict(tensors)), **gradients}


def _of_passes(cost: Callable[[str], Any], pass_: str) -> Any:
    return cost(pass_) if pass_ != "both" else cost("forward") + cost("backward")


def moved(op: Op, operands: Sequence[str], fixed: Values) -> Callable[[str, Arguments], int]:
    """The bytes of a pass as declared, counting the case's tensors."""

    def cost(pass_: str, arguments: Arguments) -> int:
        return op.work(pass_, _named(op, pass_, operands, arguments, fixed)).bytes

    return lambda pass_, arguments: _of_passes(lambda p: cost(p, arguments), pass_)


def flops_of_product(count: int, pass_: str, shape: Shape) -> float:
    """The flops of ``count`` products; 0 for a forward pass of few rows, which the weight's bytes
    bound."""
    if pass_ == "forward" and shape[0] <= _FEW_ROWS:
        return 0
    return 2.0 * math.prod(shape) * count


def flops(
    op: Op, operands: Sequence[str], sizes: Callable[[str, Shape], Shape], fixed: Values,
    few_rows: bool = False, share: Callable[[Shape], float] = lambda _: 1.0,
) -> Callable[[str, Shape], float]:  # fmt: skip
    """The operations of a pass as declared; with ``few_rows``, 0 for forward passes that the
    weight's bytes bound."""
    made = {name: name for name in operands} | {f"d{name}": name for name in op.returned}

    def cost(pass_: str, shape: Shape) -> float:
        tensors = {n: torch.empty(sizes(of, shape), device="meta") for n, of in made.items()}
        found = op.work(pass_, _named(op, pass_, operands, tensors, fixed)).flops
        return share(shape) * (found or 0.0)

    def of_shape(pass_: str, shape: Shape) -> float:
        if few_rows and pass_ == "forward" and shape[0] <= _FEW_ROWS:
            return 0
        return float(_of_passes(lambda p: cost(p, shape), pass_))

    return of_shape


# ---- the case -----------------------------------------------------------------------------------


def derive(
    op: Op,
    key: str,
    inputs: tuple[str, ...],
    parameters: tuple[str, ...] = (),
    *,
    reference: Function | None = None,
    fixed: Values | None = None,
    ours: Function | None = None,
    torchs: Function | None = None,
    rivals: Mapping[str, Function] | None = None,
    backwards: Mapping[str, Build | None] | None = None,
    raw: bool = True,
    triton: bool = True,
    compiled: Callable[[Compiler], Build] | str = "stock",
    few_rows: bool = False,
    **fields: Any,
) -> Case:
    """Derives the case of ``op`` with these operands.

    ``reference`` is by default the declared stock. ``ours`` is the public function of the operands
    with ``backend`` by keyword, by default the op's call. ``torchs`` replaces the declared stock if
    it reads tensors that are computed once. ``rivals`` are further functions, and ``backwards`` are
    backward passes other than autograd's, or None where a provider has none. Without ``raw`` ours
    is differentiated like the others. ``compiled`` is torch.compile's backward pass: by default
    autograd's of the compiled stock, with "vjp" one graph of it, with "gradient" the declared
    formula. For ``few_rows`` see :func:`flops`.
    """
    indices, integers = tuple(fields.get("indices", {})), fields.get("integers", ())
    taken, operands = inputs + parameters, (*indices, *inputs, *parameters)
    fixed = {a.name: False for a in op.arguments if isinstance(a, Flag)} | dict(fixed or {})
    stock = by_place(op.stock, operands, op.names, fixed) if torchs is None else torchs
    functions: dict[str, Function] = {"torch": stock}
    triton = triton and op.triton is not None
    for who, backend in [("ours", "auto"), *([("triton", "triton")] if triton else [])]:
        if ours is not None:
            functions[who] = ours if who == "ours" else partial(ours, backend=backend)
        else:
            by_name = {**fixed, "backend": backend}
            functions[who] = by_place(op.call, operands, (*op.names, "backend"), by_name)
    functions |= rivals or {}
    outputs = fields.pop("outputs", op.returned)
    cotangents = tuple(f"d{name}" for name in outputs)

    def differentiated(function: Function) -> Build:
        def build(arguments: Arguments) -> Call:
            of_operands = partial(function, *(arguments[name] for name in indices))
            return differentiate(of_operands, taken, cotangents)(arguments)

        return build if indices else differentiate(function, taken, cotangents)

    back = {who: differentiated(run) for who, run in functions.items()}
    if raw:
        back["ours"] = backward(op, operands, fixed, op.raw.backward)
        if triton:
            back["triton"] = backward(op, operands, fixed, triton_backward(op))
    if op.flops is not None and "flops" not in fields:
        fields["flops"] = flops(op, operands, fields["sizes"], fixed, few_rows)
    by_compiler: dict[Any, Callable[[Compiler], Build]] = {
        "stock": lambda compiler: differentiated(compiler(stock)),
        "vjp": compiled_vjp(stock, cotangents, operands, constants=len(integers)),
        "gradient": lambda compiler: backward(
            op, operands, fixed, compiler(op.gradient or op.formula)
        ),
    }
    back_or_none = {**back, **(backwards or {})}
    differentiable = [name for name in inputs if name not in integers]
    return Case(
        key=key,
        inputs=inputs,
        parameters=parameters,
        outputs=outputs,
        reference=reference or stock,
        save=fields.pop("save", partial(_save, op, fixed) if raw else lambda _: {}),
        functions=functions,
        backward={who: run for who, run in back_or_none.items() if run is not None},
        compiled_backward=compiled if callable(compiled) else by_compiler[compiled],
        gradients=len(_gradients(op, differentiable)),
        moved=fields.pop("moved", moved(op, taken, fixed)),
        **{"name": op.name, **fields},
    )
