# SPDX-License-Identifier: MIT
"""`Case` describes one op to the benchmark: its tensors, its reference and its providers' calls.

An op names its tensors, which have M rows and N columns unless `sizes` says otherwise. The names
decide how many bytes a pass moves at least, which gradients it returns and how both are checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.measure.sweeps import ROWS, Grid, Shape, shape_text
from transformer_kernels.measure.timing import Call

Arguments = dict[str, Tensor]
Function = Callable[..., Any]
Build = Callable[[Arguments], Call]
Part = Callable[[str, Tensor], Tensor]  # (name, whole tensor) -> the part that is checked
Compiler = Callable[[Function], Function]  # torch.compile, in the mode of the run

PASSES = ("forward", "backward", "both")


@dataclass(frozen=True)
class Draw:
    """How to find the elements that a random op dropped: its results show them, and the reference
    applies the same mask."""

    p: float  # probability that an element is dropped
    kept: Callable[[str, Arguments, Sequence[Tensor]], Tensor]  # (pass, arguments, results) -> mask
    in_sum: bool = False  # forward: small elements are lost in a sum with another tensor


class UnsupportedError(Exception):
    """The provider has no such op, or not for these arguments."""


@dataclass(frozen=True)
class Problem:
    op: str
    pass_: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    shape: Shape

    def __str__(self) -> str:
        names = [dtype_name(self.dtype)]
        if self.weight_dtype != self.dtype:
            names.append(f"{dtype_name(self.weight_dtype)} weights")
        return f"{self.op} {self.pass_} {' '.join(names)} {shape_text(self.shape)}"


def _rows_and_columns(_: str, shape: Shape) -> Shape:
    return shape


@dataclass(frozen=True)
class Case:
    name: str
    key: str  # <family>/<op>, the same path in every tree of the project
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]  # tensors of N
    outputs: tuple[str, ...]  # results of the forward pass
    reference: Function  # (*inputs, *parameters) -> outputs; run in float64
    functions: Mapping[str, Function]  # provider -> differentiable (*inputs, *parameters)
    backward: Mapping[str, Build]  # provider -> the backward pass alone
    compiled_backward: Callable[[Compiler], Build]
    # The tensors that the backward pass reads beside the inputs.
    save: Callable[[Arguments], Arguments] = lambda _: {}
    forward: Mapping[str, Build] = field(default_factory=dict)  # used where no gradient is wanted
    gradients: int = 1  # inputs with a gradient of their own: 1 where all gradients are equal
    grid: Grid = ROWS  # the shapes that are measured
    sizes: Callable[[str, Shape], Shape] = _rows_and_columns  # (tensor, shape) -> its sizes
    flops: Callable[[str, Shape], float] | None = None  # of a pass, where arithmetic is the bound
    verified: Callable[[Arguments], Part] | None = None  # replaces random rows, if rows need others
    draw: Draw | None = None
    feature: bool = False  # a variant of another op: measured only when it is asked for by name
    # Integer tensors by name, and how to draw them. Functions and the reference take them before
    # the operands.
    indices: Mapping[str, Callable[[Shape], Tensor]] = field(default_factory=dict)
    moved: Callable[[str, Arguments], int] | None = None  # bytes of a pass
    integers: tuple[str, ...] = ()  # inputs that hold column numbers and have no gradient

    @property
    def operands(self) -> tuple[str, ...]:
        return self.inputs + self.parameters

    @property
    def differentiable(self) -> tuple[str, ...]:
        """Inputs that have a gradient."""
        return tuple(name for name in self.inputs if name not in self.integers)

    @property
    def cotangents(self) -> tuple[str, ...]:
        return tuple(f"d{name}" for name in self.outputs)

    def make(self, problem: Problem, device: torch.device) -> Arguments:
        """Draws random tensors for all passes."""
        arguments = {
            name: torch.randn(self.sizes(of, problem.shape), dtype=problem.dtype, device=device)
            for name, of in zip(
                self.inputs + self.cotangents, self.inputs + self.outputs, strict=True
            )
        }
        for name in self.integers:
            sizes = self.sizes(name, problem.shape)
            arguments[name] = torch.randint(0, problem.shape[-1], sizes, device=device)
        for name in self.parameters:
            noise = torch.randn(problem.shape[-1], dtype=problem.weight_dtype, device=device)
            arguments[name] = noise + 1 if name == "weight" else noise
        for name, draw in self.indices.items():
            arguments[name] = draw(problem.shape).to(device)
        return {**arguments, **self.save(arguments)}

    def bytes_moved(self, pass_: str, arguments: Arguments) -> int:
        """The fewest bytes of a pass: by default each operand, result and gradient counts once."""
        if self.moved is not None:
            return self.moved(pass_, arguments)
        forward = sum(arguments[name].nbytes for name in (*self.operands, *self.cotangents))
        written = (*self.differentiable, *self.parameters)
        backward = forward + sum(arguments[name].nbytes for name in written)
        return {"forward": forward, "backward": backward, "both": forward + backward}[pass_]

    def elements(self, shape: Shape) -> int:
        """The number of elements of all inputs and outputs."""
        return sum(math.prod(self.sizes(name, shape)) for name in self.inputs + self.outputs)

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that we have, and that are measured."""
        has_gradient = "ours" in self.functions or "ours" in self.backward
        return PASSES if has_gradient else PASSES[:1]

    @property
    def providers(self) -> set[str]:
        """The providers that can run the op, in any pass."""
        return {"compile", *self.functions, *self.backward, *self.forward}

    def build(self, provider: str, pass_: str, compiled: Compiler) -> Build:
        """Builds the provider's call of the pass; raises UnsupportedError where it has none."""
        if pass_ == "backward":
            return self._backward(provider, compiled)
        if pass_ == "forward" and provider in self.forward:
            return self.forward[provider]
        function = self._function(provider, compiled)
        if pass_ == "forward":
            return bind(function, *self.indices, *self.operands)
        return lambda arguments: _forward_and_backward(
            self.with_indices(function, arguments), self.operands, self.cotangents
        )(arguments)

    def with_indices(self, function: Function, arguments: Arguments) -> Function:
        """Binds the index tensors, so that a function of the operands remains."""
        return partial(function, *(arguments[name] for name in self.indices))

    def _backward(self, provider: str, compiled: Compiler) -> Build:
        if provider == "compile":
            return self.compiled_backward(compiled)
        if provider not in self.backward:
            raise UnsupportedError(f"{provider} has no {self.name} backward")
        return self.backward[provider]

    def _function(self, provider: str, compiled: Compiler) -> Function:
        if provider == "compile":
            return compiled(self._function("torch", compiled))
        if provider not in self.functions:
            raise UnsupportedError(f"{provider} has no differentiable {self.name}")
        return self.functions[provider]


def bind(function: Function, *names: str) -> Build:
    """Builds the call of `function` with the tensors of these names."""
    return lambda arguments: partial(function, *(arguments[name] for name in names))


def _forward_and_backward(
    function: Function, operands: Sequence[str], cotangents: Sequence[str]
) -> Build:
    def build(arguments: Arguments) -> Call:
        leaves = _leaves(arguments, operands)
        gradients = [arguments[name] for name in cotangents]

        def call() -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(function(*leaves), _wanted(leaves), gradients)

        return call

    return build


def differentiate(function: Function, operands: Sequence[str], cotangents: Sequence[str]) -> Build:
    """Builds the backward pass of `function` through autograd, for ops without a raw backward
    op."""

    def build(arguments: Arguments) -> Call:
        leaves = _leaves(arguments, operands)
        gradients = [arguments[name] for name in cotangents]
        with torch.enable_grad(), _side_stream(leaves[0].device):
            outputs = function(*leaves)
        return lambda: torch.autograd.grad(outputs, _wanted(leaves), gradients, retain_graph=True)

    return build


@contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Runs the forward pass on a side stream. Autograd runs the backward pass on the same stream,
    and a CUDA graph can capture any stream but the default one."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _leaves(arguments: Arguments, names: Sequence[str]) -> list[Tensor]:
    tensors = [arguments[name].detach() for name in names]
    return [tensor.requires_grad_(tensor.is_floating_point()) for tensor in tensors]


def _wanted(leaves: Sequence[Tensor]) -> list[Tensor]:
    return [leaf for leaf in leaves if leaf.requires_grad]
