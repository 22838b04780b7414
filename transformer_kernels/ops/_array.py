# SPDX-License-Identifier: MIT
"""Runs the forward pass of a declared op on an FPGA array, through a kernel in C++."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentValueError
from .._library import direct, raw_op
from .._torch import is_transformed
from ._declare import Op
from ._declare_arguments import Given, one_or_all
from ._declare_fake import fake_forward


def refuse_array(title: str, why: str) -> ArgumentValueError:
    return ArgumentValueError(f"{title}: backend is 'fpga', expected 'auto' {why}")


def without_array(title: str) -> Callable[..., Any]:
    """The formula of an op on an array, which a library without arrays would run."""

    def refuse(*_: Any) -> Any:
        raise refuse_array(title, "(the library in use has no array)")

    return refuse


def raw_array_op(op: Op) -> Any:
    """The raw op that runs on the array that the environment names."""
    schema = op.forward_schema.replace("_forward(", "_forward_fpga(", 1)
    return raw_op(schema, reference=without_array(op.title), fake=partial(fake_forward, op))


def run_on_array(op: Op, given: Given) -> Any:
    """Runs the op on an array. Calls that an array cannot compute are refused, here or in C++."""
    title = op.title_of(given)
    if op.array is None:
        raise refuse_array(title, "(an array has no kernel of it)")
    refuse_derivatives(title, {name: given[name] for name in op.differentiable})
    kernel = op.array if torch.compiler.is_compiling() else direct(op.array)
    results = kernel(*given.values())
    return one_or_all(results[: len(op.returned)]) if len(op.results) > 1 else results


def refuse_derivatives(title: str, tensors: dict[str, Any]) -> None:
    """Raises under transforms, and where a tensor requires a gradient: an array computes none."""
    if is_transformed():
        raise refuse_array(title, "under torch.func and torch.jit.trace")
    if not torch.is_grad_enabled():
        return
    for name, value in tensors.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise ArgumentValueError(
                f"{title}: {name} requires a gradient, expected none with backend 'fpga' (it has no"
                " backward pass; torch.no_grad() asks for none)"
            )
