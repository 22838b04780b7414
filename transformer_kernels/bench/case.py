# SPDX-License-Identifier: MIT
"""What one op tells the benchmark: its tensors, its reference, and how each provider runs it.

Every problem has M rows of N columns. An op names its tensors; from the names follow the bytes
that a pass must move at least, the gradients that it must give, and the check of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench.timing import Call

Arguments = dict[str, Tensor]
Function = Callable[..., Any]
Build = Callable[[Arguments], Call]
Compiler = Callable[[Function], Function]  # torch.compile, in the mode of the run

PASSES = ("forward", "backward", "both")


class UnsupportedError(Exception):
    """The provider has no such op, or not for these arguments."""


@dataclass(frozen=True)
class Problem:
    op: str
    pass_: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    rows: int
    columns: int

    def __str__(self) -> str:
        names = [dtype_name(self.dtype)]
        if self.weight_dtype != self.dtype:
            names.append(f"{dtype_name(self.weight_dtype)} weights")
        return f"{self.op} {self.pass_} {' '.join(names)} {self.rows}x{self.columns}"


@dataclass(frozen=True)
class Op:
    name: str
    key: str  # <family>/<op>, the same path in every tree of the project
    inputs: tuple[str, ...]  # tensors of M x N
    parameters: tuple[str, ...]  # tensors of N
    outputs: tuple[str, ...]  # of the forward pass, M x N each
    backward_reads: tuple[str, ...]
    reference: Function  # (*inputs, *parameters) -> outputs; run in float64
    save: Callable[[Arguments], Arguments]  # what the backward pass reads beside the inputs
    functions: Mapping[str, Function]  # provider -> differentiable (*inputs, *parameters)
    backward: Mapping[str, Build]  # provider -> the backward pass alone
    compiled_backward: Callable[[Compiler], Build]
    forward: Mapping[str, Build] = field(default_factory=dict)  # where there is no gradient
    reused: Mapping[str, Build] = field(default_factory=dict)  # pass -> torch's out= form
    gradients: int = 1  # of the inputs, from the backward pass: one where they are all the same
    flops: Callable[[str, int, int], float] | None = None  # (pass, M, N), where they are the bound
    verified_rows: Callable[[int], slice] | None = None  # of M, where a row depends on others

    @property
    def operands(self) -> tuple[str, ...]:
        return self.inputs + self.parameters

    @property
    def cotangents(self) -> tuple[str, ...]:
        return tuple(f"d{name}" for name in self.outputs)

    def make(self, problem: Problem, device: torch.device) -> Arguments:
        """Fresh random tensors for all passes."""
        size = (problem.rows, problem.columns)
        arguments = {
            name: torch.randn(size, dtype=problem.dtype, device=device)
            for name in self.inputs + self.cotangents
        }
        for name in self.parameters:
            noise = torch.randn(problem.columns, dtype=problem.weight_dtype, device=device)
            arguments[name] = noise + 1 if name == "weight" else noise
        return {**arguments, **self.save(arguments)}

    def bytes_moved(self, pass_: str, arguments: Arguments) -> int:
        """The fewest bytes: each tensor read once and each result written once."""
        row_bytes = arguments[self.inputs[0]].nbytes
        parameter_bytes = sum(arguments[name].nbytes for name in self.parameters)
        forward = (len(self.inputs) + len(self.outputs)) * row_bytes + parameter_bytes
        reads = sum(arguments[name].nbytes for name in self.backward_reads)
        backward = reads + self.gradients * row_bytes + parameter_bytes
        return {"forward": forward, "backward": backward, "both": forward + backward}[pass_]

    def build(self, provider: str, pass_: str, compiled: Compiler) -> Build:
        """How the provider runs the pass; raises UnsupportedError where it does not."""
        if pass_ == "backward":
            return self._backward(provider, compiled)
        if pass_ == "forward" and provider in self.forward:
            return self.forward[provider]
        function = self._function(provider, compiled)
        if pass_ == "forward":
            return bind(function, *self.operands)
        return _forward_and_backward(function, self.operands, self.cotangents)

    def _backward(self, provider: str, compiled: Compiler) -> Build:
        if provider == "compile":
            return self.compiled_backward(compiled)
        if provider not in self.backward:
            raise UnsupportedError(f"{provider} has no {self.name} backward")
        return self.backward[provider]

    def _function(self, provider: str, compiled: Compiler) -> Function:
        if provider == "compile":
            return compiled(self.functions["torch"])
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
                return torch.autograd.grad(function(*leaves), leaves, gradients)

        return call

    return build


def differentiate(function: Function, operands: Sequence[str], cotangents: Sequence[str]) -> Build:
    """Builds the backward pass of `function` through autograd, for want of a raw op."""

    def build(arguments: Arguments) -> Call:
        leaves = _leaves(arguments, operands)
        gradients = [arguments[name] for name in cotangents]
        with torch.enable_grad():
            outputs = function(*leaves)
        return lambda: torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)

    return build


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _leaves(arguments: Arguments, names: Sequence[str]) -> list[Tensor]:
    return [arguments[name].detach().requires_grad_() for name in names]
