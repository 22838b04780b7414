# SPDX-License-Identifier: MIT
"""Calls of raw ops without their tensors: C++ checks them, and says what it refuses.

Shapes, dtypes, strides and devices travel as numbers (csrc/torch/metadata.h), so that tensors
without memory, of any device and under any transform are checked as those that kernels take.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ._errors import DTYPES_OF_CPP, translate
from ._library import has_kernels, library_path
from ._torch import has_memory

_ABSENT = (-1,)
_CPU, _CUDA = 0, 1  # DeviceType
_DTYPES = {dtype: code for code, dtype in enumerate(DTYPES_OF_CPP)}
_INTEGERS = (torch.int32, torch.int64)
_LONGEST = 4096  # of a message


_OF_THREAD = threading.local()


def _message() -> Any:
    """The calling thread's room for a message."""
    if not hasattr(_OF_THREAD, "message"):
        _OF_THREAD.message = ctypes.create_string_buffer(_LONGEST)
    return _OF_THREAD.message


@cache
def _check() -> Any:
    """C++'s ``tfk_check``; None where there is none."""
    if not has_kernels:
        return None
    check = getattr(ctypes.CDLL(str(library_path())), "tfk_check", None)
    if check is not None:
        text, size = ctypes.c_char_p, ctypes.c_size_t
        check.argtypes = (text, text, size, text, size)  # the second are packed numbers
    return check


@cache
def is_checked(name: str) -> bool:
    """Whether the library in use checks calls of the raw op ``name``."""
    check = _check()
    return check is not None and check(name.encode(), None, 0, _message(), _LONGEST) >= 0


_SYMBOLS = frozenset((torch.SymInt, torch.SymFloat, torch.SymBool))


def _values(numbers: Sequence[Any]) -> Sequence[Any]:
    """Numbers; those of the call which is traced, where they are symbols."""
    if _SYMBOLS.isdisjoint(map(type, numbers)):
        return numbers
    return [n.node.hint if type(n) in _SYMBOLS else n for n in numbers]


def _readable(x: Tensor) -> Tensor | None:
    """The numbers of an integer tensor without gaps, where the host has them."""
    if not x.is_cpu or not has_memory(type(x)):
        return None
    try:
        packed = x.contiguous()
        there = packed.data_ptr() != 0 or packed.numel() == 0
    except RuntimeError:  # a tensor of a transform, or of a graph
        return None
    return packed if there else None


class _Tensors:
    """The tensors of one call. Where the host lacks the numbers of one, C++ reads none of them: it
    takes the call for a device's."""

    def __init__(self, values: Sequence[Any]) -> None:
        tensors = [value for value in values if isinstance(value, Tensor)]
        self._first = tensors[0].device
        self._on_host = tensors[0].is_cpu
        self._numbers: dict[int, Tensor] = {}
        for x in tensors:
            if x.dtype not in _INTEGERS:
                continue
            readable = _readable(x)
            if readable is None:
                self._on_host = False
            else:
                self._numbers[id(x)] = readable

    def _device(self, x: Tensor) -> tuple[int, int]:
        if x.device == self._first:
            return (_CPU if self._on_host else _CUDA), 0
        readable = id(x) in self._numbers
        return (_CPU if readable else _CUDA), (0 if x.is_cpu else 1)

    def described(self, x: Tensor) -> tuple[Any, ...]:
        kind, index = self._device(x)
        numbers = self._numbers.get(id(x)) if kind == _CPU else None
        memory = 0 if numbers is None else numbers.data_ptr()
        return (x.dim(), _DTYPES[x.dtype], kind, index, memory, *x.shape, *x.stride())


def check_call(name: str, title: str, kinds: Sequence[str], values: Sequence[Any]) -> None:
    """Raise what the raw op ``name`` of C++ would; ``title`` is its name in the message.

    Tensors are of dtypes that C++ has, and on one device but for those that may lie on the CPU.
    """
    tensors = _Tensors(values)
    numbers: list[Any] = []
    form = ""
    for kind, value in zip(kinds, values, strict=True):
        described = (value,)
        if kind == "Tensor":
            described = _ABSENT if value is None else tensors.described(value)
        numbers += described
        form += "d" if kind == "float" else "q" * len(described)
    packed = struct.pack(form, *_values(numbers))
    text = _message()
    if _check()(name.encode(), packed, len(numbers), text, _LONGEST) == 1:
        raise translate(title, RuntimeError(text.value.decode()))
