# SPDX-License-Identifier: MIT
"""The base class for your own kernels."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError
from ..ops._declare_arguments import Argument, Indices, Mask, Param, Seed
from ..testing.case import Problem
from ..testing.check import check_problem
from ..testing.inputs import randn
from ._kernel_op import KernelOp, declare_kernel

if TYPE_CHECKING:
    from ..measure.schema import Result as BenchResult


class Kernel:
    """Your own kernel, in Triton, CUDA, C++ or Python, with everything that the library's ops have.

    A subclass defines the op in ``formula``, and runs it in ``forward`` and ``backward``:

    >>> from torch import Tensor
    >>> class SoftCap(tfk.workbench.Kernel):
    ...     def formula(self, x: Tensor, cap: float) -> Tensor:
    ...         return cap * torch.tanh(x / cap)
    ...     def forward(self, x: Tensor, cap: float) -> Tensor:
    ...         return cap * (x / cap).tanh()  # a call of your extension
    ...     def backward(self, dy: Tensor, x: Tensor, cap: float) -> Tensor:
    ...         return dy * (1 - (x / cap).tanh().square())  # and another
    >>> soft_cap = SoftCap()
    >>> soft_cap(torch.tensor([0.0, 1e6]), 30.0)
    tensor([ 0., 30.])

    An instance is a function. Arguments are checked before the kernel runs, and results after it:
    number, shape, dtype, device, and that they have memory of their own. The function is
    differentiable, by ``backward``, or where there is none by autograd of the formula; second
    derivatives are the formula's. It is an op of PyTorch, for torch.compile and torch.export;
    torch.func follows the formula. Both passes run below autograd and must not write to their
    arguments.

    Attributes:
        name: name of the op, also in messages; by default the class's name in snake case.
        arguments: kinds of arguments (:mod:`transformer_kernels.workbench.arguments`), if the
            annotations of ``formula`` do not suffice: those distinguish ``Tensor``, ``Tensor |
            None``, ``float``, ``int`` and ``bool``, and every tensor counts as differentiable.
        results: names of the results of ``formula`` and ``forward``; the gradient of ``y`` is
            ``dy``.
    """

    name: ClassVar[str] = ""
    arguments: ClassVar[tuple[Argument, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ("y",)
    # Takes gradients of results, arguments, results and need_d<argument>, by name. Returns the
    # gradients of all differentiable arguments in order; None for one that is absent or not needed.
    backward: Any = None

    def formula(self, *arguments: Any) -> Any:
        """Computes the op in PyTorch operations, on tensors of any dtype and device."""
        raise NotImplementedError

    def forward(self, *arguments: Any) -> Any:
        """Runs the kernel; takes the arguments of ``formula``, by position."""
        raise NotImplementedError

    def why_absent(self, device: torch.device) -> str | None:  # noqa: ARG002
        """The reason why the kernel cannot run on a device, so that the formula runs; None where it
        can."""
        return None

    def inputs(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> tuple[Any, ...]:
        """Draws the arguments of a problem for ``benchmark`` and ``check``: tensors of ``shape``,
        parameters of its last size, and the defaults of ``formula`` for numbers."""
        defaults = inspect.signature(self.formula).parameters
        return tuple(
            self._drawn(a, defaults[a.name].default, shape, dtype, device)
            for a in self.op.arguments
        )

    def __init__(self) -> None:
        for method in ("formula", "forward"):
            if getattr(type(self), method) is getattr(Kernel, method):
                raise ArgumentTypeError(
                    f"{type(self).__name__}: {method} is missing, expected a method"
                )
        self._declare()

    def _declare(self) -> None:
        taken = [] if self.backward is None else [*inspect.signature(self.backward).parameters]
        self.op: KernelOp = declare_kernel(self, self.name or _snake(type(self).__name__), taken)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the op: a copy declares its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("op", "_signature")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._declare()

    def __call__(self, *arguments: Any, backend: str = "auto", **named: Any) -> Any:
        """Calls the op; ``backend="reference"`` runs the formula."""
        op = self.op
        if backend not in ("auto", "reference"):
            raise ArgumentValueError(
                f"{op.name}: backend is {backend!r}, expected 'auto' or 'reference'"
            )
        if named or len(arguments) != len(op.names):
            arguments = self._bound(arguments, named)
        return op.call(*arguments, backend)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.op.forward_schema})"

    def check(self, *arguments: Any, **named: Any) -> None:
        """Holds both passes to the rule of :doc:`numerics`: the error against the formula in
        float64 may be at most twice that of the formula in the given dtype, plus a floor.

        Raises:
            AssertionError: the rule is broken; the message names the result or gradient and its
                error.
        """
        given = self._bound(arguments, named)
        names = [n for n in self.op.differentiable if self.op.given(given)[n] is not None]
        places = [self.op.names.index(name) for name in names]

        def of(function: Any) -> Any:
            def run(*tensors: Tensor, **options: Any) -> Any:
                values = [*given]
                for place, tensor in zip(places, tensors, strict=True):
                    values[place] = tensor
                return function(*values, **options)

            return run

        tensors = tuple(given[place].detach() for place in places)
        check_problem(Problem(tensors, of(self), of(self.formula), of(self.formula)))

    def benchmark(self, *shapes: Sequence[int], **settings: Any) -> BenchResult:
        """Times the kernel ("ours") against its formula ("torch") and the compiled formula
        ("compile"), as ``transformer-kernels bench`` does: verified first, with random ``inputs``.

        Args:
            shapes: shapes of the problems, as ``inputs`` takes them; by default (2048, 1024).
            settings: ``device``, ``dtypes``, ``passes``, ``providers``, ``seconds`` and ``timer``
                of :class:`transformer_kernels.bench.runner.Settings`.

        Returns:
            The result that the command writes; ``transformer_kernels.measure.table.render`` makes a
            table.
        """
        from ._kernel_bench import benchmark

        return benchmark(self, shapes or ((2048, 1024),), **settings)

    def profile(self, *arguments: Any, **named: Any) -> Any:
        """Reports one forward and backward pass as
        :class:`transformer_kernels.profile.KernelProfiler` does: kernels, launches, bytes, gaps."""
        from ._kernel_bench import profile

        return profile(self, self._bound(arguments, named))

    # ---- arguments ------------------------------------------------------------------------------

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.formula)

    def _bound(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise ArgumentTypeError(
                f"{self.op.name}: {error}, expected {self._signature}"
            ) from None
        bound.apply_defaults()
        return bound.args

    def _drawn(
        self,
        argument: Argument,
        default: Any,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Any:
        if not argument.is_tensor:
            return 1 if default is inspect.Parameter.empty else default
        if isinstance(argument, (Indices, Mask, Seed)):
            if argument.optional:
                return None
            raise ArgumentValueError(
                f"{self.op.name}: {argument.name} is missing, expected a method inputs() that"
                " draws it"
            )
        return randn(shape[-1:] if isinstance(argument, Param) else shape, dtype, device)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
