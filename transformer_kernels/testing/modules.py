# SPDX-License-Identifier: MIT
"""Changes that users make to the layers of a model, each of which a fused pass has to notice.

A change takes the parent of a layer, the layer's name there, and a list that gains an element each
time the change runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

Change = Callable[[nn.Module, str, list[str]], None]


class Adapter(nn.Module):
    """Wraps a layer, keeps its parameters' names, and multiplies by a learned factor."""

    def __init__(self, base: nn.Module, log: list[str]) -> None:
        super().__init__()
        self.base = base
        self.gain = nn.Parameter(torch.full((), 0.5, dtype=next(base.parameters()).dtype))
        self.log = log

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        self.log.append("adapter")
        return self.base(*inputs, **options) * (1 + self.gain)


class _Larger(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 1.5 * weight


def _larger(values: Any) -> Any:
    return tuple(None if x is None else 1.5 * x for x in values)


def _adapter(parent: nn.Module, name: str, log: list[str]) -> None:
    setattr(parent, name, Adapter(getattr(parent, name), log))


def _forward_hook(parent: nn.Module, name: str, log: list[str]) -> None:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        log.append("forward hook")
        return 1.5 * output

    getattr(parent, name).register_forward_hook(hook)


def _forward_pre_hook(parent: nn.Module, name: str, log: list[str]) -> None:
    def hook(_module: nn.Module, inputs: Any) -> Any:
        log.append("forward pre-hook")
        return (inputs[0].flip(-1),)

    getattr(parent, name).register_forward_pre_hook(hook)


def _backward_hook(parent: nn.Module, name: str, log: list[str]) -> None:
    def hook(_module: nn.Module, dinputs: Any, _doutputs: Any) -> Any:
        log.append("full backward hook")
        return _larger(dinputs)

    getattr(parent, name).register_full_backward_hook(hook)


def _backward_pre_hook(parent: nn.Module, name: str, log: list[str]) -> None:
    def hook(_module: nn.Module, doutputs: Any) -> Any:
        log.append("full backward pre-hook")
        return _larger(doutputs)

    getattr(parent, name).register_full_backward_pre_hook(hook)


def _other_forward(parent: nn.Module, name: str, log: list[str]) -> None:
    module = getattr(parent, name)
    stock = module.forward

    def forward(*inputs: Any) -> Any:
        log.append("replaced forward")
        return 1.5 * stock(*inputs)

    module.forward = forward


def _other_class(parent: nn.Module, name: str, log: list[str]) -> None:
    module = getattr(parent, name)
    stock = type(module)

    class Louder(stock):  # type: ignore[misc, valid-type]
        def forward(self, *inputs: Any) -> Any:
            log.append("derived class")
            return 1.5 * super().forward(*inputs)

    module.__class__ = Louder


def _pruned(parent: nn.Module, name: str, _log: list[str]) -> None:
    prune.random_unstructured(getattr(parent, name), "weight", 0.5)


def _weight_norm(parent: nn.Module, name: str, _log: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the hook, which parametrizations replace
        nn.utils.weight_norm(getattr(parent, name))


def _parametrization(parent: nn.Module, name: str, _log: list[str]) -> None:
    parametrize.register_parametrization(getattr(parent, name), "weight", _Larger())


CHANGES: dict[str, Change] = {
    "adapter": _adapter,
    "forward hook": _forward_hook,
    "forward pre-hook": _forward_pre_hook,
    "full backward hook": _backward_hook,
    "full backward pre-hook": _backward_pre_hook,
    "replaced forward": _other_forward,
    "derived class": _other_class,
    "pruned": _pruned,
    "weight_norm": _weight_norm,
    "parametrization": _parametrization,
}


class Quantized(Tensor):
    """A quantized weight, which only the functions of stock layers can read."""

    scale: Tensor

    @staticmethod
    def of(weight: Tensor) -> Quantized:
        scale = weight.detach().abs().amax() / 127
        steps = (weight.detach() / scale).round().as_subclass(Quantized)
        steps.scale = scale
        return steps

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        readers = (torch.nn.functional.linear, torch.addmm)
        with torch._C.DisableTorchFunctionSubclass():
            if func in readers:
                args = [x.as_subclass(Tensor) * x.scale if type(x) is cls else x for x in args]
            out = func(*args, **(kwargs or {}))
        if func is Tensor.detach:
            out = out.as_subclass(cls)
            out.scale = args[0].scale
        return out


def quantize(parent: nn.Module, name: str) -> None:
    module = getattr(parent, name)
    weight = Quantized.of(module._parameters.pop("weight"))
    module.register_parameter("weight", nn.Parameter(weight, requires_grad=False))


def results(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> dict[str, Any]:
    """The loss, and the gradient of each parameter that has one, by name."""
    model.zero_grad()
    value = loss(model)
    value.backward()
    found = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    return {"loss": value.detach(), **found}
