# SPDX-License-Identifier: MIT
"""The declaration of an op: its arguments, its results, the signature of its backward pass and its
formula.

``Op`` is data. `_register.declare` makes from it the raw ops with their schemas and fakes,
``torch.autograd.Function``, the op of exported graphs, the choice of a backend and the translation
of errors. Only the formula, and the public function's signature and docstring, are written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._declare_arguments import Argument, Given, Like, Result, Seed
from ._work import MEMORY, BytesOf, FlopsOf, Work, sizes_of

Tensors = tuple[Tensor, ...]
Formula = Callable[..., Any]
Call = Callable[..., Any]
Way = Mapping[str, int]  # argument or result -> the dimension that is split (_parallel.py)
Ways = Sequence[Way]
Parallel = Callable[["Op", Given], Ways]


def nowhere(op: Op, given: Given) -> Ways:  # noqa: ARG001
    """Not at all: every device computes the whole."""
    return ()


class Kernels(NamedTuple):
    """One backend of one op; the functions have the signatures of the raw ops."""

    forward: Callable[..., Any]  # (*arguments) -> results, saved ones last
    backward: Callable[..., Any]
    inference: Callable[..., Any]  # (*arguments) -> results that are not saved


@dataclass(eq=False)
class Op:
    """A declared op. ``call`` takes every argument by position, and the backend.

    ``backward`` declares the backward pass as ``(dy, dsum?, x, bias, need_dbias, need_y) -> dx,
    dbias, y``: gradients of results, arguments, results and flags, by name. A question mark says
    that a gradient may be absent, because the result is not differentiated or the op lacks it;
    beside such a gradient, any other absent one is passed as zeros. If only the gradient of one of
    ``sums`` arrives, it is returned for that sum's terms and no kernel runs. A flag asks for the
    gradients that ``flags`` lists, by default for the one in its own name; ``need_y`` asks to
    recompute a result. Results that no flag asks for have no elements. An input of another kind,
    such as ``bool masked``, is one of ``expressions``, and a number, such as ``int rows``, one of
    ``sizes``.

    Without ``gradient``, autograd of ``formula`` is the formula of the backward pass, and a call
    saves all its tensors. With ``gradient``, a call saves what the backward pass reads.

    ``function`` names the public function, ``stock`` computes the results by the calls of PyTorch
    that a user would write, in the dtypes of the arguments and without statistics: the rival of
    benchmarks and tests, and the pattern that the op replaces. Its random numbers are its own.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    backward: str
    formula: Formula  # (*arguments) -> results, without saved ones
    statistics: Callable[[Given], Any] | None = None  # arguments and results -> saved results
    gradient: Formula | None = None  # (*inputs of the backward pass) -> its results
    check: Callable[[str, Given], None] | None = None  # of an op that C++ does not check
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # sums and terms
    passed: Mapping[str, str] = field(default_factory=dict)  # arguments that share a gradient
    backward_of: Op | None = None  # the op whose backward pass this one uses
    has_inference: bool = True  # whether a raw op exists that saves nothing
    shown: str | Callable[[Given], str] = ""  # its name in messages, if it differs
    last_dims: Callable[[Given], int] = lambda _: 1  # last dims that belong together
    # Inputs of the backward pass as expressions of the arguments, in which ``torch`` is in scope.
    expressions: Mapping[str, str] = field(default_factory=dict)
    # Likewise, but evaluated in the forward pass, for tensors that the backward pass does not need.
    sizes: Mapping[str, str] = field(default_factory=dict)
    # Allocates results and gradients that are not contiguous, or whose shape or dtype is not their
    # argument's; takes everything that the pass takes.
    memory: Mapping[str, Callable[[Given], Tensor]] = field(default_factory=dict)
    jagged: bool = True  # takes jagged tensors, on their memory
    function: str = ""  # the public one, by its name in the package: "functional.gelu"
    stock: Any = None  # (*arguments) -> results, in PyTorch's own calls; by default the formula
    kind: str = MEMORY  # what bounds it: one of KINDS
    parallel: Parallel = nowhere  # the ways in which it may be split between devices
    moved: BytesOf | None = None  # bytes of a pass; by default each tensor once
    flops: FlopsOf | None = None  # operations of a pass, of an op of products
    unread: tuple[str, ...] = ()  # inputs of the backward pass that give a shape and a dtype alone
    one_of: tuple[str, ...] = ()  # two optional arguments; a call has exactly one
    # Arguments whose gradients take more than a call of the backward pass. If one of them is
    # needed, ``gradients`` computes all: (backward, values, needed) -> gradients by argument.
    more: tuple[str, ...] = ()
    gradients: Callable[[Formula, Given, Given], Given] | None = None
    triton: Callable[[], Kernels] | None = None  # imports Triton on first use
    # Both passes, made of other ops, without C++. They return None for what is not saved or not
    # asked for.
    composed: tuple[Formula, Formula] | None = None
    eager_backward: Formula | None = None  # of a composed op; may add to ``.grad`` itself
    fpga: bool = False  # has a forward pass on an FPGA array
    replaces: tuple[Any, ...] = ()  # functions and modules of PyTorch
    text: str = ""  # the formula, for the documentation
    # The end of a refusal's message: the call that was probably meant, if that can be told.
    hint: Callable[[Given], str] | None = None
    checks: Any = field(init=False, repr=False, default=None)  # the raw op of C++'s checks, or None
    raw: Kernels = field(init=False, repr=False)
    array: Any = field(init=False, repr=False)  # the raw op of an FPGA array, or None
    public: Any = field(init=False, repr=False)  # one node of exported graphs
    call: Call = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.stock = self.stock or self.formula

    # ---- names ----------------------------------------------------------------------------------

    @cached_property
    def title(self) -> str:
        """The op's name in messages that do not depend on arguments."""
        return self.name if callable(self.shown) else self.shown or self.name

    def title_of(self, given: Given) -> str:
        """The op's name in messages."""
        return self.shown(given) if callable(self.shown) else self.title

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.arguments)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The schema's types of the arguments, without question marks."""
        return tuple(argument.kind for argument in self.arguments)

    @cached_property
    def returned(self) -> tuple[str, ...]:
        return tuple(result.name for result in self.results if not result.saved)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        return tuple(result.name for result in self.results if result.saved)

    @cached_property
    def _inputs(self) -> list[tuple[str, str, str]]:
        """The type, name and question mark of each input of the backward pass."""
        return re.findall(r"(?:(bool|int) )?(\w+)(\??)", self.backward.partition("->")[0])

    @cached_property
    def backward_inputs(self) -> tuple[str, ...]:
        return tuple(name for _, name, _ in self._inputs)

    @cached_property
    def may_be_absent(self) -> tuple[str, ...]:
        """Gradients that may be absent in the backward pass."""
        return tuple(name for _, name, mark in self._inputs if mark)

    @cached_property
    def zeroed(self) -> tuple[str, ...]:
        """Results whose absent gradients are passed as zeros, because another result's may be
        absent."""
        given = tuple(r.name for r in self.results if r.has_gradient and not r.saved)
        needed = tuple(name for name in given if f"d{name}" not in self.may_be_absent)
        return () if self.sums or needed == given else needed

    def kept_like(self, name: str) -> str:
        """The tensor to save for the shape of a result, and for its dtype unless that is narrower:
        autograd casts a gradient to its argument's dtype."""
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
        """The result of the backward pass that is an argument's gradient."""
        first = next((terms[0] for terms in self.sums.values() if name in terms), name)
        return f"d{first}"

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The tensors that the backward pass and its derivative read, which a call saves."""
        tensors = [argument.name for argument in self.arguments if argument.is_tensor]
        results = [result.name for result in self.results]
        if self.gradient is None:
            return (*tensors, *(name for name in results if name in self.backward_inputs))
        read = (*self.backward_inputs, *self.more)
        return tuple(name for name in (*tensors, *results) if name in read)

    @cached_property
    def flag_of(self) -> dict[str, str]:
        """For each argument with one, the flag that asks for its gradient."""
        flags = [name for name in self.backward_inputs if name.startswith("need_d")]
        asked = {flag: (flag.removeprefix("need_d"),) for flag in flags} | {**self.flags}
        return {name: flag for flag, names in asked.items() for name in names}

    def is_needed(self, name: str, values: Given) -> bool:
        """Whether a call of the backward pass asks for an argument's gradient."""
        return name not in self.flag_of or values[self.flag_of[name]]

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
            if self.composed is not None and name in self.saved:
                mark = "?"
            kind = kind or ("bool" if name.startswith("need_") else "Tensor")
            return declared.get(name, f"{kind}{mark} {name}")

        inputs = (schema(*parts) for parts in self._inputs)
        return f"{self.name}_backward({', '.join(inputs)}) -> {_tensors(self.backward_outputs)}"

    @property
    def check_schema(self) -> str:
        return f"{self.name}_check({self._arguments_schema}) -> ()"

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas of the raw ops, which C++ registers."""
        inference = (self.inference_schema,) if self.saved and self.has_inference else ()
        backward = (self.backward_schema,) if self.backward_of is None else ()
        return (self.forward_schema, *inference, *backward)

    # ---- cost -----------------------------------------------------------------------------------

    def work(self, pass_: str, given: Given) -> Work:
        """The cost of a pass with these tensors and numbers by name: arguments, results, and
        gradients such as ``dx``."""
        moved = self._moved if self.moved is None else self.moved
        return Work(moved(pass_, given), None if self.flops is None else self.flops(pass_, given))

    def _moved(self, pass_: str, given: Given) -> int:
        """Counts each tensor once, except seeds, which have a few bytes."""
        unread = {a.name for a in self.arguments if isinstance(a, Seed)}
        if pass_ == "forward":
            read = [name for name in self.names if name not in unread]
            return sizes_of(given, (*read, *self.returned))
        read = [name for name in self.backward_inputs if name not in {*self.unread, *unread}]
        again = {name for name in self.returned if not given.get(f"need_{name}")}
        return sizes_of(given, (*read, *(n for n in self.backward_outputs if n not in again)))

    # ---- calls ----------------------------------------------------------------------------------

    def given(self, arguments: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.names, arguments, strict=True))

    def empty_result(self, result: Result, given: Given) -> Tensor:
        """Allocates a result."""
        make = self.memory.get(result.name, result.empty)
        return make(given)


def _tensors(names: Sequence[str]) -> str:
    text = ", ".join(f"Tensor {name}" for name in names)
    return text if len(names) == 1 else f"({text})"
