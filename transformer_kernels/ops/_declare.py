# SPDX-License-Identifier: MIT
"""An op from its declaration.

From the arguments, the results, the signature of the backward pass and the formula come the raw ops
with their schemas and fakes, ``torch.autograd.Function``, the op of exported graphs, the choice of
a backend and the translation of errors. By hand stay the formula, and the public function's
signature and docstring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, check_same_device, dtype_name
from .._library import composed_op, direct, public_op, raw_op
from .._torch import has_undecided_sizes, with_autograd
from ._array import raw_array_op
from ._declare_arguments import Argument, Given, Like, Param, Result, as_tuple, one_or_all
from ._declare_call import Call, make_call
from ._kinds import is_jagged, on_memory, require_memory

Tensors = tuple[Tensor, ...]
Formula = Callable[..., Any]


class Kernels(NamedTuple):
    """One backend of one op, with the signatures of the raw ops."""

    forward: Callable[..., Any]  # (*arguments) -> results, saved ones last
    backward: Callable[..., Any]
    inference: Callable[..., Any]  # (*arguments) -> results that are not saved


@dataclass(eq=False)
class Op:
    """A declared op; ``call`` takes every argument in its place, and the backend.

    The backward pass is declared as ``(dy, dsum?, x, bias, need_dbias, need_y) -> dx, dbias, y``,
    that is gradients of results, arguments, results and flags by name. A gradient with a question
    mark may be absent: nobody differentiates that result, or the op has no such result. Beside one
    that may, any other that is absent is zeros. Where the gradient of one of ``sums`` is the only
    one, it is the gradient of that result's terms. A flag asks for the gradients that ``flags``
    names, by default for the one in its own name; ``need_y`` for a result, computed once more. What
    nobody asks for has no elements. An input of another kind, as ``bool masked``, is one of
    ``expressions``, and a number such as ``int rows`` one of ``sizes``.

    By default the backward pass as a formula is autograd of ``formula``, for which a call keeps all
    its tensors. With ``gradient`` it keeps what the backward pass reads.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    backward: str
    formula: Formula  # (*arguments) -> results, without the saved ones
    statistics: Callable[[Given], Any] | None = None  # arguments and results -> the saved ones
    gradient: Formula | None = None  # (*inputs of the backward pass) -> its results
    check: Callable[[str, Given], None] | None = None  # beyond the arguments one by one
    columnwise: Callable[[Given], bool] = lambda _: False  # whether no column needs another
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # results: their terms
    passed: Mapping[str, str] = field(default_factory=dict)  # arguments: whose gradient is theirs
    backward_of: Op | None = None  # has the raw op of the backward pass
    has_inference: bool = True  # a raw op that saves nothing, where there is something to save
    shown: str | Callable[[Given], str] = ""  # its name in messages, where that is another's
    last_dims: Callable[[Given], int] = lambda _: 1  # of rows, that belong together
    # Inputs of the backward pass as expressions of the arguments; ``torch`` is in scope.
    expressions: Mapping[str, str] = field(default_factory=dict)
    # The same of tensors that the backward pass does without, evaluated with the forward pass.
    sizes: Mapping[str, str] = field(default_factory=dict)
    # How to allocate results and gradients that are not contiguous, or not of the shape and dtype
    # of their argument; given all that the pass takes.
    memory: Mapping[str, Callable[[Given], Tensor]] = field(default_factory=dict)
    runs_kinds: bool = True  # jagged tensors and DTensors, on their memory
    one_of: tuple[str, ...] = ()  # two optional arguments, of which a call has one
    # Arguments whose gradients take more than a call of the backward pass, and all gradients where
    # one of them is needed: (backward, values, needed) -> gradients by argument.
    more: tuple[str, ...] = ()
    gradients: Callable[[Formula, Given, Given], Given] | None = None
    triton: Callable[[], Kernels] | None = None  # imports Triton on first use
    composed: tuple[Formula, Formula] | None = None  # both passes of other ops: no C++ of its own
    eager_backward: Formula | None = None  # of a composed op: may give None, where ``.grad`` has it
    fpga: bool = False  # has a forward pass on an FPGA array
    replaces: tuple[Any, ...] = ()  # functions and modules of PyTorch
    text: str = ""  # the formula, for the documentation
    raw: Kernels = field(init=False, repr=False)
    array: Any = field(init=False, repr=False)  # the raw op of an FPGA array, or None
    public: Any = field(init=False, repr=False)  # one node of exported graphs
    call: Call = field(init=False, repr=False)

    # ---- names ----------------------------------------------------------------------------------

    @cached_property
    def title(self) -> str:
        """Its name in messages that know no arguments."""
        return self.name if callable(self.shown) else self.shown or self.name

    def title_of(self, given: Given) -> str:
        """Its name in messages."""
        return self.shown(given) if callable(self.shown) else self.title

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.arguments)

    @cached_property
    def returned(self) -> tuple[str, ...]:
        return tuple(result.name for result in self.results if not result.saved)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        return tuple(result.name for result in self.results if result.saved)

    @cached_property
    def _inputs(self) -> list[tuple[str, str, str]]:
        """(type, name, question mark) of what the backward pass takes."""
        return re.findall(r"(?:(bool|int) )?(\w+)(\??)", self.backward.partition("->")[0])

    @cached_property
    def backward_inputs(self) -> tuple[str, ...]:
        return tuple(name for _, name, _ in self._inputs)

    @cached_property
    def may_be_absent(self) -> tuple[str, ...]:
        """Gradients that the backward pass does without."""
        return tuple(name for _, name, mark in self._inputs if mark)

    @cached_property
    def zeroed(self) -> tuple[str, ...]:
        """Results whose gradients are zeros where they are absent, as another result's may be."""
        needed = tuple(name for name in self.returned if f"d{name}" not in self.may_be_absent)
        return () if self.sums or needed == self.returned else needed

    def kept_like(self, name: str) -> str:
        """What is kept of the shape of a result, and of its dtype unless that is narrower: autograd
        gives a gradient its argument's dtype."""
        result = next(result for result in self.results if result.name == name)
        alike = [r.name for r in self.results if r.is_alike(result)]
        wide = [a.name for a in self.arguments if isinstance(a, Like) and a.or_float32]
        wider = [r.name for r in self.results if r.like in wide and r.shape is result.shape]
        return next(n for n in (name, *alike, result.like, *wider) if n in self.kept)

    @cached_property
    def evaluated(self) -> dict[str, Callable[..., Any]]:
        """``expressions`` as functions of all arguments."""
        return self._functions(self.expressions)

    @cached_property
    def measured(self) -> dict[str, Callable[..., Any]]:
        """``sizes`` as functions of all arguments."""
        return self._functions(self.sizes)

    def _functions(self, expressions: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
        names = ", ".join(self.names)
        scope = {"torch": torch}
        return {n: eval(f"lambda {names}: {e}", scope) for n, e in expressions.items()}

    @cached_property
    def backward_outputs(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\w+", self.backward.partition("->")[2]))

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The arguments that have a gradient."""
        direct = {n for n in self.names if self.gradient_of(n) in self.backward_outputs}
        return tuple(n for n in self.names if n in direct or n in self.more or n in self.passed)

    def gradient_of(self, name: str) -> str:
        """Which result of the backward pass is an argument's gradient."""
        first = next((terms[0] for terms in self.sums.values() if name in terms), name)
        return f"d{first}"

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The tensors that the backward pass and its derivative read."""
        tensors = [argument.name for argument in self.arguments if argument.is_tensor]
        results = [result.name for result in self.results]
        if self.gradient is None:
            return (*tensors, *(name for name in results if name in self.backward_inputs))
        read = (*self.backward_inputs, *self.more)
        return tuple(name for name in (*tensors, *results) if name in read)

    @cached_property
    def flag_of(self) -> dict[str, str]:
        """The flag that asks for an argument's gradient, where there is one."""
        flags = [name for name in self.backward_inputs if name.startswith("need_d")]
        asked = {flag: (flag.removeprefix("need_d"),) for flag in flags} | {**self.flags}
        return {name: flag for flag, names in asked.items() for name in names}

    # ---- schemas --------------------------------------------------------------------------------

    @property
    def _arguments_schema(self) -> str:
        return ", ".join(argument.schema for argument in self.arguments)

    @property
    def public_schema(self) -> str:
        return f"{self.name}({self._arguments_schema}) -> {_tensors(self.returned)}"

    @property
    def forward_schema(self) -> str:
        results = (*self.returned, *self.saved)
        return f"{self.name}_forward({self._arguments_schema}) -> {_tensors(results)}"

    @property
    def inference_schema(self) -> str:
        return f"{self.name}_inference({self._arguments_schema}) -> {_tensors(self.returned)}"

    @property
    def backward_schema(self) -> str:
        declared = {argument.name: argument.schema for argument in self.arguments}

        def schema(kind: str, name: str, mark: str) -> str:
            kind = kind or ("bool" if name.startswith("need_") else "Tensor")
            return declared.get(name, f"{kind}{mark} {name}")

        inputs = (schema(*parts) for parts in self._inputs)
        return f"{self.name}_backward({', '.join(inputs)}) -> {_tensors(self.backward_outputs)}"

    @property
    def schemas(self) -> tuple[str, ...]:
        """Those of the raw ops, which C++ registers."""
        inference = (self.inference_schema,) if self.saved and self.has_inference else ()
        backward = (self.backward_schema,) if self.backward_of is None else ()
        return (self.forward_schema, *inference, *backward)

    # ---- checks ---------------------------------------------------------------------------------

    def given(self, arguments: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.names, arguments, strict=True))

    def as_declared(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments in the types of their schema; what has no rows to read is refused."""
        title = self.title_of(self.given(arguments))
        pairs = zip(self.arguments, arguments, strict=True)
        declared = tuple(argument.as_declared(title, value) for argument, value in pairs)
        rows = [argument.name for argument in self.arguments if argument.has_rows]
        jagged = rows if is_jagged(declared[0]) else ()
        require_memory(title, self.given(declared), jagged)
        return declared

    def check_values(self, given: Given) -> None:
        """What C++ checks where it runs."""
        title = self.title_of(given)
        self._check_one_of(title, given)
        for argument in self.arguments:
            if given[argument.name] is not None:
                argument.check(title, given[argument.name], given)
        self._check_parameters(title, given)
        if self.check is not None:
            self.check(title, given)

    def _check_one_of(self, title: str, given: Given) -> None:
        if sum(given[name] is not None for name in self.one_of) == 1 or not self.one_of:
            return
        first, other = self.one_of
        if given[first] is None:
            raise ArgumentValueError(f"{title}: {first} is missing, expected it or {other}")
        raise ArgumentValueError(
            f"{title}: {first} is present beside {other}, expected one of the two"
        )

    def _check_parameters(self, title: str, given: Given) -> None:
        parameters = {
            a.name: given[a.name]
            for a in self.arguments
            if isinstance(a, Param) and not a.own_dtype
        }
        present = {name: value for name, value in parameters.items() if value is not None}
        for name, value in present.items():
            first = next(iter(present.values())).dtype
            if value.dtype is not first:
                raise ArgumentTypeError(
                    f"{title}: {name} is {dtype_name(value.dtype)}, expected"
                    f" {dtype_name(first)} (all parameters and their gradients share one dtype)"
                )

    # ---- the formula as a backend ---------------------------------------------------------------

    def formula_inference(self, *arguments: Any) -> Any:
        self.check_values(self.given(arguments))
        return self.formula(*arguments)

    def formula_forward(self, *arguments: Any) -> Any:
        values = self.given(arguments)
        values |= zip(self.returned, as_tuple(self.formula_inference(*arguments)), strict=True)
        values |= self._statistics_of(values)
        return one_or_all([values[name] for name in (*self.returned, *self.saved)])

    def _statistics_of(self, values: Given) -> dict[str, Tensor]:
        found = () if self.statistics is None else as_tuple(self.statistics(values))
        return dict(zip(self.saved, found, strict=True))

    def saved_again(self, values: Given) -> dict[str, Tensor]:
        """The saved results, of what a call keeps."""
        tensors = {argument.name for argument in self.arguments if argument.is_tensor}
        if not tensors <= {*self.kept}:
            return self._statistics_of(values)
        results = as_tuple(self.raw.forward(*(values[name] for name in self.names)))
        return dict(zip(self.saved, results[len(self.returned) :], strict=True))

    def _is_needed(self, name: str, values: Given) -> bool:
        return name not in self.flag_of or values[self.flag_of[name]]

    def formula_backward(self, *inputs: Any) -> Any:
        if self.gradient is not None:
            return self.gradient(*inputs)
        values = dict(zip(self.backward_inputs, inputs, strict=True))
        with torch.no_grad(), with_autograd():
            return one_or_all(self._derive_formula(values))

    def derive(self, values: dict[str, Any]) -> Sequence[Tensor]:
        """The results of the backward pass by its formula, which can be differentiated again.

        So can what it reads: kernels cut off from the arguments what they save.
        """
        if self.gradient is None:
            return self._derive_formula(values)
        values |= self._statistics_of(values)
        return as_tuple(self.gradient(*(values[name] for name in self.backward_inputs)))

    def _derive_formula(self, values: dict[str, Any]) -> list[Tensor]:
        """The results of the backward pass through autograd of the formula."""
        again = torch.is_grad_enabled()
        given = {name: values.get(name) for name in self.names}
        # Aliases end the graph here, also where one argument was computed from another.
        aliases = {
            name: value.view_as(value)
            if again and value.requires_grad
            else value.detach().requires_grad_()
            for name in self.differentiable
            if (value := given[name]) is not None
        }
        with torch.enable_grad():
            results = as_tuple(self.formula(**{**given, **aliases}))
        wanted = [name for name in aliases if self._is_needed(name, values)]
        gradients = torch.autograd.grad(
            results,
            [aliases[name] for name in wanted],
            [values[f"d{name}"] for name in self.returned],
            create_graph=again,
            materialize_grads=True,
        )
        found = {f"d{n}": g.contiguous() for n, g in zip(wanted, gradients, strict=True)}
        for name, result in zip(self.returned, results, strict=True):
            if values.get(f"need_{name}"):
                found[name] = result.detach()
        return [
            found[name] if name in found else results[0].new_empty(0)
            for name in self.backward_outputs
        ]

    # ---- fakes ----------------------------------------------------------------------------------

    def fake_forward(self, *arguments: Any) -> Any:
        given = self.given(arguments)
        if not has_undecided_sizes(arguments):  # which C++ checks where they are known
            self.check_values(given)
        return one_or_all([self._empty_result(result, given) for result in self.results])

    def _empty_result(self, result: Result, given: Given) -> Tensor:
        make = self.memory.get(result.name, result.empty)
        return make(given)

    def fake_inference(self, *arguments: Any) -> Any:
        return one_or_all(as_tuple(self.fake_forward(*arguments))[: len(self.returned)])

    def fake_backward(self, *inputs: Any) -> Any:
        values = dict(zip(self.backward_inputs, inputs, strict=True))
        anywhere = {argument.name for argument in self.arguments if argument.on_cpu}
        first, *others = (
            v for name, v in values.items() if isinstance(v, Tensor) and name not in anywhere
        )
        check_same_device(self.title_of(values), first, *others)
        results = {result.name: result for result in self.results}

        def empty(name: str) -> Tensor:
            if name in results:
                needed = values[f"need_{name}"]
                return self._empty_result(results[name], values) if needed else first.new_empty(0)
            of = name.removeprefix("d")
            like = values.get(of, first)  # where the argument itself is not read
            if like is None or not self._is_needed(of, values):
                return first.new_empty(0)
            return self.memory[name](values) if name in self.memory else like.new_empty(like.shape)

        return one_or_all([empty(name) for name in self.backward_outputs])


DECLARED: dict[str, Op] = {}


def declare(name: str, **declaration: Any) -> Op:
    """Register the ops of a declaration, which are the fields of :class:`Op`."""
    op = Op(name, **declaration)
    assert op.gradients is None or op.gradient is not None, "kernels have no derivative"
    op.raw = _raw_kernels(op)
    op.array = raw_array_op(op) if op.fpga else None
    op.public = define_public(op)
    op.call = make_call(op, _direct_kernels(op), gradients_of)
    DECLARED[name] = op
    return op


def _direct_kernels(op: Op) -> Kernels:
    if op.composed is not None:
        forward, backward = op.composed
        return _composed_kernels(op, forward, op.eager_backward or backward)
    forward, backward = direct(op.raw.forward), direct(op.raw.backward)
    if op.saved and not op.has_inference:
        return Kernels(forward, backward, without_saved(op, forward))
    return Kernels(forward, backward, direct(op.raw.inference))


def _tensors(names: Sequence[str]) -> str:
    text = ", ".join(f"Tensor {name}" for name in names)
    return text if len(names) == 1 else f"({text})"


def _raw_kernels(op: Op) -> Kernels:
    def define(
        schema: str, formula: Formula, fake: Formula, names: tuple[str, ...] = op.names
    ) -> Any:
        return raw_op(schema, reference=on_memory(op.title, formula, *names), fake=fake)

    if op.composed is not None:
        run = _composed_kernels(op, *op.composed)
        forward = composed_op(op.forward_schema, run.forward, op.fake_forward)
        backward = composed_op(op.backward_schema, run.backward, op.fake_backward)
        return Kernels(forward, backward, without_saved(op, forward) if op.saved else forward)
    forward = define(op.forward_schema, op.formula_forward, op.fake_forward)
    inference = forward
    if op.saved and op.has_inference:
        inference = define(op.inference_schema, op.formula_inference, op.fake_inference)
    elif op.saved:
        inference = without_saved(op, forward)
    if op.backward_of is not None:
        backward = op.backward_of.raw.backward
    else:
        backward = define(
            op.backward_schema, op.formula_backward, op.fake_backward, op.backward_inputs
        )
    return Kernels(forward, backward, inference)


def _composed_kernels(op: Op, forward: Formula, backward: Formula) -> Kernels:
    """Behind the checks that no C++ and no schema does. Eager calls run them as they stand: what
    watches the ops of a call sees those that they are made of."""

    def checked(*arguments: Any) -> Any:
        declared = op.as_declared(arguments)
        op.check_values(op.given(declared))
        return forward(*declared)

    run = on_memory(op.title, checked, *op.names)
    run_backward = on_memory(op.title, backward, *op.backward_inputs)
    return Kernels(run, run_backward, without_saved(op, run) if op.saved else run)


def without_saved(op: Op, forward: Callable[..., Any]) -> Callable[..., Any]:
    """What a forward pass returns to the user."""
    returned = len(op.returned)

    def inference(*arguments: Any) -> Any:
        return one_or_all(forward(*arguments)[:returned])

    return inference


def define_public(op: Op, **where: Any) -> Any:
    """The op as one node of a graph. It returns no statistics: its backward pass computes them once
    more."""

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
            values |= op.saved_again({**dict.fromkeys(op.names), **values})
        needed = dict(zip(op.names, ctx.needs_input_grad, strict=True))
        return tuple(gradients_of(op, op.raw, values, needed))

    return public_op(
        op.public_schema,
        impl=op.raw.inference,
        fake=op.fake_inference,
        setup_context=setup_context,
        backward=backward,
        **where,
    )


def gradients_of(
    op: Op, kernels: Kernels, values: dict[str, Any], needed: dict[str, bool]
) -> list[Tensor | None]:
    """One for each argument; by the formula where they will be differentiated again."""
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
        results: Sequence[Tensor] = op.derive(values)
    else:
        results = as_tuple(kernels.backward(*(values[name] for name in op.backward_inputs)))
    found = dict(zip(op.backward_outputs, results, strict=True))
    found |= {f"d{name}": values[f"d{result}"] for name, result in op.passed.items()}
    return [found[op.gradient_of(name)] if needed[name] else None for name in op.names]
