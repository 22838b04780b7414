# SPDX-License-Identifier: MIT
"""The activations as modules, one for each function; subclasses of PyTorch's where it has one."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..ops.pointwise.pointwise import FUNCTIONS
from ..ops.pointwise.table import ACTIVATIONS, Activation

_PLAIN_DOC = """:func:`transformer_kernels.functional.{function}` as a module.

Args:
    arguments: PyTorch's arguments, where it has a module of this name.
    features: the columns of a bias that is added first; None for no bias.
    backend: as for the function.
    device: device of the bias.
    dtype: dtype of the bias.
    options: PyTorch's arguments by keyword.

>>> tfk.nn.{name}(features=64)(torch.randn(2, 64)).shape
torch.Size([2, 64])
"""
_GATED_DOC = """:func:`transformer_kernels.functional.{function}` as a module.

Args:
    up_features: the columns of a bias of ``up``; None for no bias.
    options: ``features``, the columns of a bias of the gate, or of the packed pair; ``backend``,
        as for the function; ``device`` and ``dtype`` of the biases.

The call takes ``gate`` and ``up``, or the packed pair alone.

>>> tfk.nn.{name}()(torch.randn(2, 2 * 64)).shape  # the packed pair
torch.Size([2, 64])
"""


def _zeros(features: int | None, device: Any, dtype: torch.dtype | None) -> nn.Parameter | None:
    if features is None:
        return None
    return nn.Parameter(torch.zeros(features, device=device, dtype=dtype))


class _Pointwise(nn.Module):
    """The base of the activations: with ``features`` it adds a bias of that many columns first, a
    parameter that starts at zero.

    The bias and the backend have class attributes, for a PyTorch module whose class is replaced.
    """

    function: ClassVar[Any]
    backend: str = "auto"

    def __init__(
        self,
        *arguments: Any,
        features: int | None = None,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.backend = backend
        self.register_parameter("bias", _zeros(features, device, dtype))

    def _options(self) -> dict[str, Any]:
        return {"bias": getattr(self, "bias", None), "backend": self.backend}

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def extra_repr(self) -> str:
        parts = [super().extra_repr()]
        for name, parameter in self.named_parameters(recurse=False):
            parts.append(f"{name.replace('bias', 'features')}={parameter.numel()}")
        if self.backend != "auto":
            parts.append(f"backend={self.backend!r}")
        return ", ".join(filter(None, parts))


class _Plain(_Pointwise):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.function(input, **self._options())


class _InPlace(_Pointwise):
    inplace: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.function(input, self.inplace, **self._options())


class _Gated(_Pointwise):
    """An activation with a gate. ``gate`` and ``up`` may come packed as one tensor, whose bias then
    has as many features as that tensor."""

    def __init__(self, *, up_features: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        up_bias = _zeros(up_features, options.get("device"), options.get("dtype"))
        self.register_parameter("up_bias", up_bias)

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return self.function(gate, up, up_bias=self.up_bias, **self._options())


class GELU(_Pointwise, nn.GELU):
    """:class:`torch.nn.GELU`; with ``features`` it adds a bias of that many columns first.

    Args:
        arguments: ``approximate``, as in PyTorch: ``"none"`` or ``"tanh"``.
        features: the columns of a bias that is added first; None for no bias.
        backend: as for :func:`transformer_kernels.functional.gelu`.
        device: device of the bias.
        dtype: dtype of the bias.
        options: ``approximate`` by keyword.

    >>> tfk.nn.GELU(approximate="tanh", features=64)(torch.randn(2, 64)).shape
    torch.Size([2, 64])
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return FUNCTIONS["gelu"](input, self.approximate, **self._options())


class GEGLU(_Gated):
    """:func:`transformer_kernels.functional.geglu` as a module, of two tensors or a packed pair.

    Args:
        approximate: ``"none"`` or ``"tanh"``.
        options: the arguments of :class:`SwiGLU`.

    >>> tfk.nn.GEGLU()(torch.randn(2, 2 * 64)).shape  # the packed pair
    torch.Size([2, 64])
    """

    def __init__(self, approximate: str = "none", **options: Any) -> None:
        super().__init__(**options)
        self.approximate = approximate

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return FUNCTIONS["geglu"](
            gate, up, self.approximate, up_bias=self.up_bias, **self._options()
        )

    def extra_repr(self) -> str:
        parts = [f"approximate={self.approximate!r}", super().extra_repr()]
        return ", ".join(filter(None, parts))


def _modules_of(row: Activation) -> dict[str, type[nn.Module]]:
    bases: tuple[type, ...] = (_InPlace if row.has_in_place else _Plain, *row.replaces[1:])
    modules = {row.module: _module(row.module, row.name, bases)}
    if row.gated:
        modules[row.gated_module] = _module(row.gated_module, row.gated, (_Gated,))
    return modules


def _module(name: str, function: str, bases: tuple[type, ...]) -> type[nn.Module]:
    template = _GATED_DOC if issubclass(bases[0], _Gated) else _PLAIN_DOC
    doc = template.format(name=name, function=function)
    return type(name, bases, {"__doc__": doc, "function": staticmethod(FUNCTIONS[function])})


MODULES: dict[str, type[nn.Module]] = {"GELU": GELU, "GEGLU": GEGLU}
for _row in ACTIVATIONS:
    if _row.module not in MODULES:
        MODULES |= _modules_of(_row)
globals().update(MODULES)
