# SPDX-License-Identifier: MIT
"""Makes a user's kernel a case of the benchmark, and runs it under the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from .._errors import ArgumentTypeError
from ..bench import runner
from ..measure.case import Arguments, Build, Case, Compiler, Function, Problem, bind, differentiate
from ..measure.derive import moved, whole
from ..measure.schema import Result
from ..measure.sweeps import Shape
from ..ops._declare_arguments import as_tuple
from ._kernel_op import KernelOp
from .device import properties

PROVIDERS = ("torch", "compile", "ours")


class Declared(Protocol):
    """The attributes of a user's kernel that the benchmark needs."""

    op: KernelOp

    def formula(self, *arguments: Any) -> Any: ...

    def inputs(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> tuple[Any, ...]: ...

    def __call__(self, *arguments: Any) -> Any: ...


@dataclass(frozen=True)
class _KernelCase(Case):
    """A benchmark case whose tensors the kernel itself draws."""

    kernel: Any = None

    def make(self, problem: Problem, device: torch.device) -> Arguments:
        given = self.kernel.inputs(problem.shape, problem.dtype, device)
        named = self.kernel.op.given(given)
        tensors = {name: named[name] for name in self.inputs}
        for name, of in zip(self.cotangents, self.outputs, strict=True):
            tensors[name] = torch.randn(
                self.sizes(of, problem.shape), dtype=problem.dtype, device=device
            )
        return tensors


def case_of(kernel: Declared) -> Case:
    """The case of a kernel. All its tensors are inputs, in the shapes that the kernel draws, and
    all elements of the results are verified."""
    op = kernel.op

    @cache
    def blank(shape: Shape) -> dict[str, Any]:
        given = kernel.inputs(shape, torch.float32, "meta")
        results = op.by_formula(given)
        return op.given(given) | {**dict(zip(op.returned, results, strict=True))}

    some = blank((2, 8))
    inputs = tuple(name for name in op.names if isinstance(some[name], Tensor))
    numbers = {name: some[name] for name in op.names if name not in inputs}
    cotangents = tuple(f"d{name}" for name in op.returned)
    integers = tuple(name for name in inputs if not some[name].is_floating_point())

    def of_tensors(function: Callable[..., Any]) -> Function:
        def run(*tensors: Tensor) -> Any:
            values = numbers | dict(zip(inputs, tensors, strict=True))
            return function(*(values[name] for name in op.names))

        return run

    formula, ours = of_tensors(kernel.formula), of_tensors(kernel)

    def compiled_backward(compiled: Compiler) -> Build:
        def run(*tensors: Tensor) -> Any:
            gradients, operands = tensors[: len(cotangents)], tensors[len(cotangents) :]
            results, vjp = torch.func.vjp(formula, *operands)[:2]
            return vjp(gradients if isinstance(results, tuple) else gradients[0])

        return bind(compiled(run), *cotangents, *inputs)

    return _KernelCase(
        name=op.name,
        key=f"yours/{op.name}",
        inputs=inputs,
        parameters=(),
        outputs=op.returned,
        reference=formula,
        functions={"torch": formula, "ours": ours},
        backward={
            "torch": differentiate(formula, inputs, cotangents),
            "ours": differentiate(ours, inputs, cotangents),
        },
        compiled_backward=compiled_backward,
        gradients=len(inputs) - len(integers),
        sizes=lambda name, shape: tuple(blank(shape)[name].shape),
        verified=whole,
        moved=moved(op, inputs, {}),
        integers=integers,
        kernel=kernel,
    )


def benchmark(
    kernel: Declared,
    shapes: Iterable[Sequence[int]],
    *,
    device: torch.device | str | None = None,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    passes: Sequence[str] = ("forward", "backward"),
    providers: Sequence[str] = PROVIDERS,
    seconds: float = 0.5,
    timer: str = "graph",
    quiet: bool = True,
) -> Result:
    found = properties(device).device
    sizes = [tuple(shape) for shape in shapes]
    if not all(isinstance(n, int) for shape in sizes for n in shape):
        raise ArgumentTypeError(f"benchmark: shapes is {sizes}, expected sequences of ints")
    settings = runner.Settings(
        ops=[case_of(kernel)],
        passes=passes,
        dtypes=dtypes,
        shapes=lambda _op, _dtype: sizes,
        device=found,
        providers=providers,
        timer=timer,
        seconds=seconds,
        find_kernels=False,
    )
    return runner.run(settings, quiet)


def profile(kernel: Declared, given: tuple[Any, ...]) -> Any:
    from ..profile import KernelProfiler

    leaves = [
        x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in given
    ]
    gradients = [torch.ones_like(r) for r in as_tuple(kernel(*leaves))]  # also warms up
    with KernelProfiler(device=given[0].device.type) as profiler:
        torch.autograd.backward(as_tuple(kernel(*leaves)), gradients)
    return profiler.report
