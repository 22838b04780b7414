# SPDX-License-Identifier: MIT
"""Hooks that check the inputs and outputs of every module, and stop at the first fault."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.weak import WeakTensorKeyDictionary

from .._errors import ArgumentTypeError, ArgumentValueError
from .._torch import is_a
from .faults import (
    CHECKS,
    Expected,
    Fault,
    FaultError,
    checked_names,
    form_fault,
    numbers_fault,
)


@dataclass
class Seen:
    """Counts of what was checked."""

    modules: int = 0  # calls of modules
    tensors: int = 0
    elements: int = 0
    gradients: int = 0  # gradient tensors, counted in tensors too


class ModuleChecks:
    """Checks the tensors of every module of ``model`` while this is entered.

    The checks follow the pass: a module's own parameters and buffers, its inputs, its outputs; with
    ``gradients``, in a backward pass, the gradient of each of those and of the parameters. The
    first fault raises :class:`FaultError` out of the pass, with the module's path. Modules that
    TorchScript or torch.compile runs are not checked.

    Args:
        checks: names among ``"nan"``, ``"inf"``, ``"shape"``, ``"dtype"`` and ``"device"``. Minus
            infinity is no fault in an input whose name contains ``mask`` or ``bias``. An input that
            is not on the device of the module's parameters is a fault of ``"device"``, unless it
            has no dimension.
        expected: the :class:`Expected` of inputs and outputs, by ``"path.of.module:output"``, or
            ``":x"`` for the argument x of the model itself.
        gradients: also check gradients.

    Checking numbers waits for the device: use this to find a fault, not for training.

    >>> model = torch.nn.Sequential(tfk.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    >>> with tfk.workbench.ModuleChecks(model, gradients=True):
    ...     model(torch.randn(4, 8)).sum().backward()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        checks: Iterable[str] = CHECKS,
        expected: Mapping[str, Expected] | None = None,
        gradients: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(
                f"ModuleChecks: model is {type(model).__name__}, expected an nn.Module"
            )
        self.seen = Seen()
        self.inside: list[str] = []  # the paths of the modules that are running, outermost first
        self._model = model
        self.checks = checked_names("ModuleChecks", checks)
        self._gradients = bool(gradients)
        self._paths = {module: path for path, module in _open_modules(model)}
        self._expected = _by_path(expected or {}, self._paths.values())
        self._handles: list[Any] = []
        self._names = WeakTensorKeyDictionary()  # of tensors whose gradients are watched
        self._sizes: dict[str, int] = {}

    def __enter__(self) -> ModuleChecks:
        self.inside.clear()
        for module in self._paths:
            self._handles += [
                module.register_forward_pre_hook(self._before, with_kwargs=True),
                module.register_forward_hook(self._after, with_kwargs=True),
            ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # ---- hooks ----------------------------------------------------------------------------------

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        path = self._paths[module]
        if not path:  # a new pass begins
            self._sizes.clear()
            self._handles = [h for h in self._handles if h.hooks_dict_ref() is not None]
        self.inside.append(path)
        self.seen.modules += 1
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, x in own:
            kind = "parameter" if isinstance(x, nn.Parameter) else "buffer"
            self._look(module, f"{kind} {name}", x)
        inputs = list(_inputs(_named(module, args, kwargs)))
        for name, x in inputs:
            self._look(module, f"input {name}", x, name)
        self._check_devices(module, [x for _, x in own], inputs)

    def _after(self, module: nn.Module, _args: Any, _kwargs: Any, results: Any) -> None:
        for name, x in _tensors(results):
            self._look(module, f"output{name}", x, f"output{name}")
        path = self._paths[module]
        while self.inside.pop() != path:  # the model caught an exception of a module
            pass

    def _look(self, module: nn.Module, where: str, x: Tensor, name: str = "") -> None:
        """Checks a tensor; ``name`` is that of an input or output, for what is expected of it."""
        self.seen.tensors += 1
        self.seen.elements += x.numel()
        path, title = self._paths[module], type(module).__name__
        wanted = self._expected.get((path, name))
        if wanted is not None:
            self._stop(form_fault(path, title, where, x, wanted, self._sizes, self.checks))
        hides = where.startswith(("input", "buffer")) and ("mask" in where or "bias" in where)
        self._stop(numbers_fault(path, title, where, x, self.checks, hides))
        if self._gradients and x.requires_grad and torch.is_grad_enabled():
            self._watch(path, title, where, x)

    def _stop(self, fault: Fault | None) -> None:
        if fault is not None:
            raise FaultError(fault)

    def _check_devices(
        self, module: nn.Module, own: list[Tensor], inputs: list[tuple[str, Tensor]]
    ) -> None:
        if "device" not in self.checks or not own:
            return
        home = own[0].device
        for name, x in inputs:
            if x.device != home and x.dim():
                detail = f"is on {x.device}, expected {home} (as its parameters)"
                path, title = self._paths[module], type(module).__name__
                raise FaultError(Fault(path, title, f"input {name}", "device", detail))

    # ---- gradients ------------------------------------------------------------------------------

    def _watch(self, path: str, title: str, where: str, x: Tensor) -> None:
        """Watches the gradient of a tensor. All readers share that gradient, so its fault names
        them all."""
        at = (path, title, where)
        if x in self._names:
            if at not in self._names[x]:
                self._names[x].append(at)
            return
        names = self._names[x] = [at]

        def look(gradient: Tensor) -> None:
            self.seen.gradients += 1
            fault = self._gradient_fault(names, gradient)
            if fault is not None:
                raise FaultError(fault)

        self._handles.append(x.register_hook(look))

    def _gradient_fault(self, names: list[tuple[str, str, str]], gradient: Tensor) -> Fault | None:
        """Checks a gradient. Its fault is named after the tensor's last reader, from which the bad
        number came."""
        (path, title, where), *others = reversed(names)
        shown = f"gradient of {where}"
        if others:
            also = ", ".join(f"{where} of {path or 'the model'}" for path, _, where in others)
            shown += f" (also {also})"
        return numbers_fault(path, title, shown, gradient, self.checks)


def _open_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that Python calls, and so with hooks, by path; each once."""
    closed: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(outer) for outer in closed):
            continue
        scripted = isinstance(module, torch.jit.ScriptModule)
        compiled = is_a(module, "torch._dynamo.eval_frame", "OptimizedModule")
        if scripted or compiled or module._compiled_call_impl is not None:
            closed.append(f"{path}." if path else "")
        if not scripted and module._compiled_call_impl is None:
            yield path, module


def _named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, by the names of ``forward``'s parameters."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # refused, as the call will say, or without a signature
        return {**{str(i): value for i, value in enumerate(args)}, **kwargs}
    return dict(bound.arguments)


def _inputs(named: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Names such as ``x`` and ``mask['self']``, with their tensors."""
    for name, value in named.items():
        yield from ((name + place, x) for place, x in _tensors(value))


def _tensors(values: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors with their places: ``[0]``, ``['logits']``, or "" for a tensor alone."""
    for path, value in tree_flatten_with_path(values)[0]:
        if isinstance(value, Tensor):
            yield keystr(path), value


def _by_path(
    expected: Mapping[str, Expected], paths: Iterable[str]
) -> dict[tuple[str, str], Expected]:
    known, found = set(paths), {}
    for key, value in expected.items():
        path, colon, name = key.rpartition(":")
        if not isinstance(value, Expected):
            raise ArgumentTypeError(
                f"ModuleChecks: expected[{key!r}] is {type(value).__name__}, expected an Expected"
            )
        if not colon or path not in known:
            raise ArgumentValueError(
                f"ModuleChecks: expected has {key!r}, expected 'path.of.module:argument' or"
                " 'path.of.module:output' of a module of the model"
            )
        found[path, name] = value
    return found
