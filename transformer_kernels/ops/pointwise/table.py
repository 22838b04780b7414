# SPDX-License-Identifier: MIT
"""The table of activations. From a row follow the ops, functions, modules, tests and documentation
of an activation, by itself and, if ``gated`` names that op, as a gate.

A row's Triton function has the row's name in ``activation_triton.py``; its kernels use a functor of
``csrc/core/math``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from ... import _torch


class Activation(NamedTuple):
    name: str
    formula: Callable[[Tensor], Tensor]  # differentiable any number of times
    text: str  # formula for the documentation
    module: str  # name of its module
    gated: str | None = None  # the op in which it is the gate of another tensor
    gated_module: str = ""
    replaces: tuple[Any, ...] = ()  # PyTorch's function and module that it replaces

    @property
    def has_in_place(self) -> bool:
        """Whether PyTorch's function can write to its input."""
        return "inplace" in getattr(next(iter(self.replaces), None), "__annotations__", ())


def _squared_relu(x: Tensor) -> Tensor:
    return _torch.relu(x).square()


def _quick_gelu(x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


ACTIVATIONS = (
    Activation(
        "gelu", F.gelu, "x / 2 * (1 + erf(x / sqrt(2)))", "GELU", "geglu", "GEGLU",
        (F.gelu, nn.GELU),
    ),
    Activation(
        "gelu_tanh", partial(F.gelu, approximate="tanh"),
        "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))", "GELU", "geglu_tanh", "GEGLU",
        (partial(F.gelu, approximate="tanh"), nn.GELU),
    ),
    Activation(
        "silu", F.silu, "x / (1 + exp(-x))", "SiLU", "swiglu", "SwiGLU", (F.silu, nn.SiLU)
    ),
    Activation("relu", _torch.relu, "max(x, 0)", "ReLU", "reglu", "ReGLU", (F.relu, nn.ReLU)),
    Activation("relu_squared", _squared_relu, "max(x, 0) ** 2", "ReLUSquared"),
    Activation("quick_gelu", _quick_gelu, "x / (1 + exp(-1.702 * x))", "QuickGELU"),
)  # fmt: skip
