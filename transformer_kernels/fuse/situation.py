# SPDX-License-Identifier: MIT
"""The key of a captured call: its arguments, the modes of PyTorch, and the state of the modules
that it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from .derive import OWN

_Key = tuple[Any, ...]


class UnservedError(Exception):
    """Says why a call cannot be captured."""


# ---- arguments ----------------------------------------------------------------------------------

_CONSTANTS = frozenset((
    type(None), bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size,
))  # fmt: skip
_TENSOR = "tensor"


class Arguments:
    """The arguments of a call: the tensors in them, each once, and the form without them.

    Equal forms hold equal constants of equal types in the same places, and the same tensors in the
    places where one stands twice.
    """

    __slots__ = ("_places", "form", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], tag: type | None) -> None:
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}
        self.form: _Key = (
            tuple([self._form(x, tag) for x in args]),
            tuple([(name, self._form(x, tag)) for name, x in kwargs.items()]),
        )

    def _form(self, x: Any, tag: type | None) -> _Key:
        kind = type(x)
        if kind in _CONSTANTS:
            return kind, x
        if kind is Tensor or kind is nn.Parameter or kind is tag:
            return _TENSOR, self.place(x)
        if kind is tuple or kind is list:
            return kind, tuple([self._form(value, tag) for value in x])
        if kind is dict:
            return kind, tuple([(name, self._form(value, tag)) for name, value in x.items()])
        if kind is float:
            return kind, x.hex()
        raise UnservedError(f"it is called with a {kind.__name__}")

    def place(self, x: Tensor) -> int:
        """The number of a tensor of the call."""
        place = self._places.get(id(x))
        if place is None:
            self._places[id(x)] = place = len(self.tensors)
            self.tensors.append(x)
        return place

    def find(self, x: Tensor) -> int | None:
        return self._places.get(id(x))


def call_with(form: _Key, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of this form with these tensors."""

    def value(x: _Key) -> Any:
        kind, held = x
        if kind is _TENSOR:
            return tensors[held]
        if kind is tuple or kind is list:
            return kind(map(value, held))
        if kind is dict:
            return {name: value(part) for name, part in held}
        return float.fromhex(held) if kind is float else held

    args, kwargs = form
    return tuple(map(value, args)), {name: value(x) for name, x in kwargs}


def metadata(tensors: Sequence[Tensor]) -> _Key:
    """Shapes, strides, dtypes and devices of tensors, and which of them require a gradient."""
    return tuple([
        (x.shape, x.stride(), x.dtype, x.get_device(), x.requires_grad) for x in tensors
    ])  # fmt: skip


# ---- modes --------------------------------------------------------------------------------------

_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter


def modes() -> _Key:
    """The state of PyTorch on which the kernels of a call depend."""
    autocast = torch.is_autocast_enabled("cuda")
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        autocast and torch.get_autocast_dtype("cuda"), torch.get_default_dtype(),
        torch._C._get_deterministic_algorithms(), _precision("cuda", "matmul"),
        torch._C._get_flash_sdp_enabled(), torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(), torch._C._get_cudnn_sdp_enabled(),
    )  # fmt: skip


# ---- modules ------------------------------------------------------------------------------------

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FIELDS = frozenset(vars(nn.Module())) - {"training"}
_CODE = (type, FunctionType, MethodType, BuiltinFunctionType, nn.Module, Tensor)


class Snapshot:
    """The state of modules, with which a later one is compared: classes, attributes, children,
    parameters and buffers with their storage, and whether hooks stand on those ``inside``.

    Raises:
        UnservedError: a graph cannot hold the modules as they are.
    """

    def __init__(self, outermost: nn.Module, inside: Sequence[nn.Module]) -> None:
        self.modules = [outermost, *inside]
        spaces = [vars(module) for module in self.modules]
        self._inside = spaces[1:]
        self._classes = [type(module) for module in self.modules]
        self._readers = [(_reader(space), space) for space in spaces]
        self._attributes = self._read()
        self._settings = _settings(spaces)
        self._values = [tuple(space.values()) for space in self._settings]
        self._loose = [(space, name) for space in spaces for name in _tensors_of(space)]
        self._stores = [s[kind] for s in spaces for kind in ("_parameters", "_buffers")]
        self._children = [s["_modules"] for s in spaces]
        self._names = self._named()
        self._objects = self._held()
        self.tensors = [x for x in self._objects if x is not None]
        self.buffers = [x for x in self.tensors if not isinstance(x, nn.Parameter)]
        self._matrices = [x for x in self.tensors if x.dim() > 1]
        self._memory = self._read_memory()
        if any(self._hooks()):
            raise UnservedError("a module in it has a hook")
        for module in self.modules:
            _require_whole(module)

    def _read(self) -> list[Any]:
        return [reader(space) for reader, space in self._readers]

    def _named(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def _hooks(self) -> list[Any]:
        return [space[hooks] for space in self._inside for hooks in _HOOKS]

    def _held(self) -> list[Tensor | None]:
        found = list(chain.from_iterable(map(dict.values, self._stores)))
        found.extend([space[name] for space, name in self._loose])
        return found

    def _read_memory(self) -> list[Any]:
        """Addresses and sizes, which ``x.data = y`` changes, and the strides of matrices, which a
        transposed view changes alone."""
        return [
            *map(Tensor.data_ptr, self.tensors), *map(Tensor.numel, self.tensors),
            *map(_needs_gradient, self.tensors), *map(Tensor.stride, self._matrices),
        ]  # fmt: skip

    def names(self) -> list[list[str]]:
        """The names of all attributes."""
        return [[n for n in vars(module) if not n.startswith(OWN)] for module in self.modules]

    def holds(self) -> bool:
        """Whether everything is as it was."""
        if [module.__class__ for module in self.modules] != self._classes or any(self._hooks()):
            return False
        try:
            if self._read() != self._attributes or self._named() != self._names:
                return False
            if [tuple(space.values()) for space in self._settings] != self._values:
                return False
            objects = self._held()
        except (KeyError, RuntimeError, ValueError):  # an attribute is gone, or compares no more
            return False
        return (
            len(objects) == len(self._objects)
            and all(map(operator.is_, objects, self._objects))
            and self._read_memory() == self._memory
            and not any("forward" in space for space in self._inside)
        )


_needs_gradient = operator.attrgetter("requires_grad")


def _tensors_of(space: dict[str, Any]) -> list[str]:
    return [name for name, value in space.items() if isinstance(value, Tensor)]


def _reader(space: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Reads a module's own attributes; those of fusing follow calls."""
    names = [
        name
        for name, value in space.items()
        if name not in _FIELDS and not name.startswith(OWN) and not isinstance(value, Tensor)
    ]
    return operator.itemgetter(*names)


def _settings(spaces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attributes of objects that modules refer to, such as a configuration, each once."""
    found = {
        id(value): vars(value)
        for space in spaces
        for name, value in space.items()
        if not name.startswith("_") and hasattr(value, "__dict__") and not isinstance(value, _CODE)
    }
    return list(found.values())


def _require_whole(module: nn.Module) -> None:
    """Refuses parameters that another library moves, and tensors that autograd would not find."""
    for name, p in module._parameters.items():
        if p is not None and (type(p) is not nn.Parameter or not p.is_leaf):
            raise UnservedError(f"its {name} is a {type(p).__name__}, no whole parameter")
    for name, x in chain(module._buffers.items(), vars(module).items()):
        if isinstance(x, Tensor) and (x.requires_grad or type(x) is not Tensor):
            raise UnservedError(
                f"its {name} is a tensor that is neither parameter nor plain buffer"
            )
