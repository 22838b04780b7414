# SPDX-License-Identifier: MIT
"""Proves a site: PyTorch's own code and ours on the same random numbers and parameters.

Proofs run on twins of the module, which share its attributes and have other parameters, so the
model itself is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import autocasts
from ..testing.tolerance import TOLERANCES
from .derive import Gate, derived
from .few import FEW

SIZES = (1.0, 1e-3, 30.0)  # of inputs; small ones tell one epsilon from another
_MOST_RANDOM = 1 << 16  # elements of a parameter that is drawn; larger ones hold many numbers
_FACTOR = 4.0  # the errors of both codes add up, and a single element may have more than the norm


def twin(module: nn.Module, parameters: Callable[[Tensor], Tensor] | None = None) -> Any:
    """A copy of the module and of those in it, whose parameters are shared, or made by a
    function."""
    made: Any = object.__new__(type(module))
    made.__dict__.update(module.__dict__)
    own = made.__dict__
    own["_modules"] = {
        name: None if child is None else twin(child, parameters)
        for name, child in module._modules.items()
    }
    if parameters is not None:
        own["_parameters"] = {
            name: None if p is None else nn.Parameter(parameters(p), requires_grad=p.requires_grad)
            for name, p in module._parameters.items()
        }
    return made


class _Open(dict[str, Gate]):
    """The gates of a twin: open for every call."""

    def __missing__(self, pattern: str) -> Gate:
        return Gate()


def fused_twin(stock: nn.Module, mixin: type, state: Mapping[str, Any]) -> Any:
    """A copy of a twin that has the derived class, the same parameters and the same children; it
    takes calls of any size."""
    made: Any = object.__new__(derived(type(stock), mixin))
    made.__dict__.update(stock.__dict__)
    made.__dict__.update(state)
    made.__dict__.update({"_tfk_gates": _Open(), FEW: 0})
    return made


def agree(ours: Any, stock: Any, times: float = 1.0, *, dtypes: bool = True) -> bool:
    """Whether results have the same shape and, with ``dtypes``, dtype, and numbers within so many
    times the tolerance of it, or of autocast's dtype where that is on."""
    if isinstance(stock, Tensor):
        return isinstance(ours, Tensor) and _close(ours, stock, times, dtypes)
    if isinstance(stock, Mapping):
        same = ours.keys() == stock.keys()
        return same and all(
            agree(ours[name], value, times, dtypes=dtypes) for name, value in stock.items()
        )
    if isinstance(stock, (tuple, list)):
        pairs = zip(ours, stock, strict=False)
        same = len(ours) == len(stock)
        return same and all(agree(a, b, times, dtypes=dtypes) for a, b in pairs)
    return True  # caches and the like, whose tensors are results of the modules that made them


def _close(ours: Tensor, stock: Tensor, times: float, dtypes: bool) -> bool:
    if ours.shape != stock.shape or (dtypes and ours.dtype is not stock.dtype):
        return False
    if not stock.is_floating_point():
        return torch.equal(ours, stock)
    finite = torch.isfinite(stock)
    if not bool(finite.all()):
        if not torch.equal(torch.isfinite(ours), finite):
            return False
        ours, stock = ours[finite], stock[finite]
    if not stock.numel():
        return True
    dtype = torch.get_autocast_dtype(stock.device.type) if autocasts(stock) else stock.dtype
    relative = TOLERANCES.get(dtype, TOLERANCES[torch.float32]).relative
    error, largest = (ours - stock).abs().max(), stock.abs().max()
    return bool(error <= times * _FACTOR * relative * largest)


_Key = tuple[Any, ...]
_OF_MODULES = frozenset((*vars(nn.Module()), "training"))  # what every module has
_proofs: dict[_Key, bool] = {}


def forget() -> None:
    """Forgets all proofs: attributes are told apart by their identity, which lasts as long as the
    model does."""
    _proofs.clear()


def _signature(module: nn.Module) -> _Key:
    """Equal for modules that compute the same function of input and parameters: classes,
    attributes, buffers and shapes."""
    own = {
        name: value if isinstance(value, (int, float, str, bool, type(None))) else id(value)
        for name, value in (*vars(module).items(), *module._buffers.items())
        if name not in _OF_MODULES
    }
    shapes = [(n, None if p is None else p.shape) for n, p in module._parameters.items()]
    children = [
        (name, None if child is None else _signature(child))
        for name, child in module._modules.items()
    ]
    return type(module), tuple(own.items()), tuple(shapes), tuple(children)


def proven(
    module: nn.Module, mixin: type, state: Mapping[str, Any], features: int, dtype: torch.dtype
) -> bool:
    """:func:`_proven`, once in a plan for modules that compute the same function."""
    key = (_signature(module), mixin, tuple(state.items()), features, dtype)
    if key not in _proofs:
        _proofs[key] = _proven(module, mixin, state, features, dtype)
    return _proofs[key]


def _proven(
    module: nn.Module, mixin: type, state: Mapping[str, Any], features: int, dtype: torch.dtype
) -> bool:
    """Whether both codes give the same for inputs (2, 3, features) of three sizes.

    Parameters are random in float32, or of ``dtype`` where that is float64. A code that raises
    proves nothing.
    """
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    device = next(iter(module.parameters()), torch.empty(0)).device
    generator = torch.Generator(device).manual_seed(1)

    def drawn(p: Tensor) -> Tensor:
        if not p.is_floating_point():
            return p.detach()
        if p.numel() > _MOST_RANDOM and bool(p.any()):
            return p.detach().to(wide)
        scale = 0.5 if p.dim() < 2 else p.shape[-1] ** -0.5
        return torch.randn(p.shape, generator=generator, dtype=wide, device=device) * scale

    stock = twin(module, drawn)
    for part in stock.modules():
        part.training = False
    ours = fused_twin(stock, mixin, state)
    shape = (2, 3, features)
    with torch.no_grad():
        for size in SIZES:
            x = torch.randn(shape, generator=generator, dtype=wide, device=device) * size
            try:
                pair = ours.forward(x + 0.1 * size), stock.forward(x + 0.1 * size)
            except Exception:  # whatever a module of the user's raises
                return False
            if not agree(*pair):
                return False
    return True
