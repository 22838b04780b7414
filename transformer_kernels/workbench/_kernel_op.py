# SPDX-License-Identifier: MIT
"""Declares the op of a user's kernel: arguments from the formula's signature, checks and passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, dtype_name, shape_text
from .._library import NAMESPACE, composite_op, direct, log_dispatch
from .._torch import has_undecided_sizes
from ..ops._declare import Kernels, Op
from ..ops._declare_arguments import (
    Argument,
    Flag,
    Given,
    Indices,
    Integer,
    Mask,
    Number,
    Result,
    Seed,
    as_tuple,
    one_or_all,
)
from ..ops._declare_call import make_call
from ..ops._declare_checks import check_values
from ..ops._declare_fake import fake_backward
from ..ops._declare_formula import formula_backward
from ..ops._register import define_public

_library = torch.library.Library(f"{NAMESPACE}_yours", "FRAGMENT")
_defined: dict[str, int] = {}  # how often each name was taken: a notebook runs a cell again

_KINDS: dict[str, type[Argument]] = {"bool": Flag, "int": Integer, "float": Number}
_Form = tuple[torch.Size, torch.dtype, torch.device]
_MOST_SHAPES = 256  # results are remembered for this many shapes


class Definition(Protocol):
    """The part of a user's kernel that its op reads; :class:`~.kernel.Kernel` documents it."""

    arguments: ClassVar[tuple[Argument, ...]]
    results: ClassVar[tuple[str, ...]]
    backward: Any

    def formula(self, *arguments: Any) -> Any: ...

    def forward(self, *arguments: Any) -> Any: ...

    def why_absent(self, device: torch.device) -> str | None: ...


@dataclass(frozen=True)
class Operand(Argument):
    """A floating-point tensor of any shape, on the same device as the argument ``of``."""

    of: str = ""

    def check(self, op: str, value: Tensor, given: Given) -> None:
        if not value.is_floating_point():
            raise ArgumentTypeError(
                f"{op}: {self.name} is {dtype_name(value.dtype)}, expected a floating-point dtype"
                " (Indices declares integers, Mask masks)"
            )
        of = given[self.of or self.name]
        if value.device != of.device:
            raise ArgumentValueError(
                f"{op}: {self.name} is on {value.device}, expected {of.device}"
            )


def arguments_of(title: str, formula: Callable[..., Any]) -> tuple[Argument, ...]:
    """The arguments of a formula, from its annotations."""
    parameters = [*inspect.signature(formula).parameters.values()]
    if not parameters:
        raise ArgumentTypeError(f"{title}: formula takes nothing, expected a Tensor first")
    return tuple(_argument(title, p, parameters[0].name) for p in parameters)


def _argument(title: str, parameter: inspect.Parameter, first: str) -> Argument:
    name, kind = parameter.name, parameter.annotation
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    plain = text.replace("Optional[", "").replace("torch.", "").partition("|")[0].strip(" ]")
    by_place = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    if by_place and plain == "Tensor":
        optional = "None" in str(kind) or "Optional" in str(kind)
        return Operand(name, optional=optional, of=first)
    if not by_place or plain not in _KINDS or name == first:
        wanted = "Tensor" if name == first else "Tensor, float, int or bool"
        shown = "without annotation" if kind is parameter.empty else f"a {text}"
        raise ArgumentTypeError(
            f"{title}: argument {name} of formula is {shown}, expected {wanted}, given by place"
        )
    return _KINDS[plain](name)


class KernelOp(Op):
    """An op with a user's kernels. Its formula determines the shapes of the results."""

    kernel: Definition

    def by_formula(self, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        results = as_tuple(self.formula(*arguments))
        if len(results) != len(self.returned):
            raise ArgumentValueError(
                f"{self.name}: formula gives {len(results)} results, expected"
                f" {len(self.returned)} ({', '.join(self.returned)})"
            )
        return results


def _fake(op: KernelOp, *arguments: Any) -> Any:
    if not has_undecided_sizes(arguments):
        check_values(op, op.given(arguments))
    return one_or_all([r.new_empty(r.shape) for r in op.by_formula(arguments)])


def declare_kernel(kernel: Definition, name: str, backward_inputs: Sequence[str]) -> KernelOp:
    """Declares the op, with its raw ops, its autograd and its node in exported graphs."""
    arguments = kernel.arguments or arguments_of(name, kernel.formula)
    results = tuple(Result(result, arguments[0].name) for result in kernel.results)
    differentiable = [a.name for a in arguments if a.is_tensor and _has_gradient(a)]
    known = {a.name for a in arguments} | {*kernel.results}
    needs = {f"need_d{n}" for n in differentiable}
    allowed = known | needs | {f"d{result}" for result in kernel.results}
    for unknown in (n for n in backward_inputs if n not in allowed):
        raise ArgumentValueError(
            f"{name}: backward takes {unknown}, expected some of {', '.join(sorted(allowed))}"
        )
    # All arguments are saved, for the second derivative, and those results that are asked for.
    read = [f"d{result}" for result in kernel.results] + [a.name for a in arguments]
    read += [n for n in backward_inputs if n in kernel.results] + sorted(needs & {*backward_inputs})
    gradients = ", ".join(f"d{n}" for n in differentiable)
    op = KernelOp(
        name=_fresh_name(name),
        arguments=arguments,
        results=results,
        backward=f"({', '.join(read)}) -> {gradients}",
        formula=kernel.formula,
        jagged=False,
    )
    op.kernel = kernel
    op.array = None
    passes = _Passes(kernel, op, backward_inputs)
    fake = partial(_fake, op)
    forward = composite_op(_library, op.forward_schema, passes.forward, fake)
    backward = composite_op(
        _library, op.backward_schema, passes.backward, partial(fake_backward, op)
    )
    op.raw = Kernels(forward, backward, forward)
    op.public = define_public(op, fake=fake, library=_library)
    op.call = make_call(op, Kernels(*map(direct, op.raw)))
    return op


def _has_gradient(argument: Argument) -> bool:
    return not isinstance(argument, (Indices, Mask, Seed))


def _fresh_name(name: str) -> str:
    _defined[name] = count = _defined.get(name, 0) + 1
    return name if count == 1 else f"{name}_{count}"


class _Passes:
    """Runs both passes of the kernel between checks, or the formula where the kernel cannot run."""

    def __init__(self, kernel: Definition, op: KernelOp, backward_inputs: Sequence[str]) -> None:
        self._kernel = kernel
        self._op = op
        self._read = backward_inputs
        self._forms: dict[tuple[Any, ...], list[_Form]] = {}

    def forward(self, *arguments: Any) -> Any:
        """Checks arguments and works out the results' shapes once for each key."""
        key = tuple(_form(x) if isinstance(x, Tensor) else x for x in arguments)
        known = self._forms.get(key)
        if known is None:
            check_values(self._op, self._op.given(arguments))
        if not self._runs(arguments[0]):
            return one_or_all([r.contiguous() for r in self._op.by_formula(arguments)])
        forms = self._expected(arguments) if known is None else known
        results = as_tuple(self._kernel.forward(*arguments))
        self._check_results(results, forms, arguments if known is None else ())
        if known is None:
            self._remember(key, forms)
        return one_or_all(results)

    def backward(self, *inputs: Any) -> Any:
        op = self._op
        values = dict(zip(op.backward_inputs, inputs, strict=True))
        if not self._read or not self._runs(values[op.names[0]]):
            return formula_backward(op, *inputs)
        found = as_tuple(self._kernel.backward(*(values[name] for name in self._read)))
        wanted = op.backward_outputs
        if len(found) != len(wanted):
            raise ArgumentValueError(
                f"{op.name}: backward gives {len(found)} gradients, expected {len(wanted)}"
                f" ({', '.join(wanted)}; None where there is none)"
            )
        first = values[op.names[0]]
        pairs = zip(wanted, found, strict=True)
        return one_or_all([self._gradient(n, g, values, first) for n, g in pairs])

    def _runs(self, x: Tensor) -> bool:
        why = self._kernel.why_absent(x.device)
        if why is not None:
            log_dispatch(f"{self._op.name}: the reference formula runs: {why}")
        return why is None

    def _gradient(self, name: str, found: Any, values: dict[str, Any], first: Tensor) -> Tensor:
        of = values[name.removeprefix("d")]
        if of is None or (found is None and not values.get(f"need_{name}", True)):
            return first.new_empty(0)
        self._require(name, found, of.shape, of.dtype, of.device)
        given = [x for x in values.values() if isinstance(x, Tensor)]
        return found.clone() if _shares_memory(found, given) else found

    def _check_results(
        self, results: tuple[Any, ...], forms: list[_Form], arguments: Sequence[Any]
    ) -> None:
        op = self._op
        if len(results) != len(forms):
            raise ArgumentValueError(
                f"{op.name}: forward gives {len(results)} results, expected {len(forms)}"
                f" ({', '.join(op.returned)})"
            )
        given = [x for x in arguments if isinstance(x, Tensor)]
        for name, result, form in zip(op.returned, results, forms, strict=True):
            if not isinstance(result, Tensor) or _form(result) != form:
                self._require(name, result, *form)
            if _shares_memory(result, given):
                raise ArgumentValueError(
                    f"{op.name}: {name} is memory of an argument, expected memory of its own"
                )

    def _require(
        self, name: str, found: Any, shape: torch.Size, dtype: torch.dtype, device: torch.device
    ) -> None:
        title = self._op.name
        if not isinstance(found, Tensor):
            raise ArgumentTypeError(f"{title}: {name} is {type(found).__name__}, expected a Tensor")
        if found.shape != shape:
            raise ArgumentValueError(
                f"{title}: {name} has shape {shape_text(found)}, expected {tuple(shape)}"
            )
        if found.dtype is not dtype:
            raise ArgumentTypeError(
                f"{title}: {name} is {dtype_name(found.dtype)}, expected {dtype_name(dtype)}"
            )
        if found.device != device:
            raise ArgumentValueError(f"{title}: {name} is on {found.device}, expected {device}")

    def _expected(self, arguments: Sequence[Any]) -> list[_Form]:
        """Shape, dtype and device of each result, from a call of the formula on meta tensors."""
        blank = [x.to("meta") if isinstance(x, Tensor) else x for x in arguments]
        device = arguments[0].device
        return [(r.shape, r.dtype, device) for r in self._op.by_formula(blank)]

    def _remember(self, key: tuple[Any, ...], forms: list[_Form]) -> None:
        if len(self._forms) >= _MOST_SHAPES:
            self._forms.clear()
        self._forms[key] = forms


def _form(x: Tensor) -> _Form:
    return x.shape, x.dtype, x.device


def _shares_memory(x: Tensor, others: Sequence[Tensor]) -> bool:
    if not others or not x.numel():
        return False
    storage = x.untyped_storage()._cdata
    return any(storage == other.untyped_storage()._cdata for other in others)
