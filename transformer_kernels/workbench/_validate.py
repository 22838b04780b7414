# SPDX-License-Identifier: MIT
"""``validate(model, inputs)`` runs one pass under all checks, and leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .._errors import ArgumentTypeError
from .faults import CHECKS, Expected, Fault, FaultError
from .hooks import ModuleChecks, Seen

_SEED = 0
_SEEDED = ("cuda", "xpu")  # devices with generators of their own


@dataclass(frozen=True)
class Report:
    """The result of :func:`validate`; true where no fault was found."""

    fault: Fault | None
    seen: Seen
    checks: tuple[str, ...]
    gradients: bool

    @property
    def ok(self) -> bool:
        return self.fault is None

    def __bool__(self) -> bool:
        return self.ok

    def raise_for_fault(self) -> None:
        """Raises FaultError where a fault was found."""
        if self.fault is not None:
            raise FaultError(self.fault)

    def __str__(self) -> str:
        seen = self.seen
        passes = "forward and backward" if self.gradients else "forward"
        looked = (
            f"{passes}: {seen.modules} calls of modules, {seen.tensors} tensors,"
            f" {seen.elements:,} elements, {seen.gradients} gradients; {', '.join(self.checks)}"
        )
        return f"{'ok' if self.fault is None else f'bad: {self.fault}'}\n{looked}"


def validate(
    model: nn.Module,
    inputs: Any,
    *,
    gradients: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    expected: Mapping[str, Expected] | None = None,
    checks: Iterable[str] = CHECKS,
) -> Report:
    """Runs ``model`` once, and finds the first module that has a bad tensor.

    The model is as before when this returns or raises: hooks, training mode, buffers, ``.grad`` of
    parameters and inputs, and the states of the random generators. Inputs are not copied, so a
    model that writes to its inputs does so here too.

    Args:
        inputs: a tensor, a tuple or list of arguments, or a dict of them by name.
        gradients: also run the backward pass of ``loss(output)``; without a loss, each
            floating-point result that requires a gradient receives random numbers.
        expected, checks: as in :class:`ModuleChecks`.

    Returns:
        A report, which is true where no fault was found. An exception of a module is a fault of the
        kind ``"error"``, with the path of the innermost module.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument has the wrong type or value; the message
            names it.

    >>> model = torch.nn.Sequential(tfk.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    >>> _ = model[1].weight.data.fill_(torch.nan)
    >>> tfk.validate(model, torch.randn(4, 8)).fault.where
    'parameter weight'
    """
    args, kwargs = _arguments(inputs)
    if loss is not None and not callable(loss):
        raise ArgumentTypeError(f"validate: loss is {type(loss).__name__}, expected a function")
    watched = ModuleChecks(model, checks=checks, expected=expected, gradients=gradients)
    fault = None
    with _as_before(model, (args, kwargs)), watched, torch.set_grad_enabled(gradients):
        try:
            results = model(*args, **kwargs)
            if gradients:
                _backward(results, loss)
        except FaultError as error:
            fault = error.fault
        except Exception as error:  # whatever a model raises is its fault
            fault = _raised(model, watched.inside, error)
    return Report(fault, watched.seen, watched.checks, gradients)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return (), dict(inputs)
    raise ArgumentTypeError(
        f"validate: inputs is {type(inputs).__name__}, expected a Tensor, a tuple of arguments or a"
        " dict of them by name"
    )


def _backward(results: Any, loss: Callable[[Any], Tensor] | None) -> None:
    if loss is not None:
        loss(results).backward()
        return
    outputs = [x for x in tree_leaves(results) if isinstance(x, Tensor) and x.requires_grad]
    generator = torch.Generator("cpu").manual_seed(_SEED)
    drawn = [
        torch.randn(x.shape, generator=generator, device="cpu").to(x.device, x.dtype)
        for x in outputs
    ]
    if outputs:
        torch.autograd.backward(outputs, drawn)


def _raised(model: nn.Module, inside: list[str], error: Exception) -> Fault:
    path = inside[-1] if inside else ""
    lines = str(error).splitlines() or [""]
    where = "raised" if inside else "raised in its backward pass:"
    module = type(model.get_submodule(path)).__name__
    return Fault(path, module, where, "error", f"{type(error).__name__}: {lines[0]}")


@contextmanager
def _as_before(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Restores what a pass changes."""
    leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.is_leaf]
    held = [*model.parameters(), *leaves]
    gradients = [x.grad for x in held]
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for x in held:
        x.grad = None  # so that the pass does not add to it
    with _random_state([*held, *(buffer for buffer, _ in buffers)]):
        try:
            yield
        finally:
            for x, gradient in zip(held, gradients, strict=True):
                x.grad = gradient
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


@contextmanager
def _random_state(tensors: list[Tensor]) -> Iterator[None]:
    """Restores the generators of the CPU and of these tensors' devices, and seeds them."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=()))
        for kind in _SEEDED:
            used = {x.device.index for x in tensors if x.device.type == kind}
            if used:
                stack.enter_context(torch.random.fork_rng(sorted(used), device_type=kind))
        yield
