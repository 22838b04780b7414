# SPDX-License-Identifier: MIT
"""Reads the header of a GGUF file: its metadata, and where its tensors are.

The header is read here, and not by ``gguf.GGUFReader``, which makes several arrays for each string
of a vocabulary and takes seconds for one of 49,152 tokens.
"""

from __future__ import annotations

import math
import mmap
import struct
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import ArgumentValueError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_MOST_DIMENSIONS = 4
_ALIGNMENT = 32  # of the tensors, where the metadata names no other


class Format(NamedTuple):
    """How numbers of a tensor are stored: ``numbers`` of them take ``size`` bytes."""

    name: str
    numbers: int
    size: int


# The formats of llama.cpp by their numbers; of others the size is not known.
FORMATS = {
    number: Format(*row)
    for number, row in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
        30: ("BF16", 1, 2),
    }.items()
}  # fmt: skip


class Stored(NamedTuple):
    """A tensor of the file, as rows of bytes."""

    name: str
    format: Format
    shape: tuple[int, ...]  # in PyTorch's order
    rows: Tensor  # uint8, (rows, bytes of a row); the last dimension of the shape is a row


class GGUFFile:
    """A GGUF file, whose tensors stay on disk until they are read.

    ``metadata`` has its keys and values, ``tensors`` its tensors by name. A file that ends early,
    or says what cannot be, is an ArgumentValueError that names it.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(fspath(path))
        with self.path.open("rb") as file:
            self._size = self.path.stat().st_size
            if self._size < 24:
                raise self.error("it is too short for a GGUF file")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._at = 0
        if self._take(4) != _MAGIC:
            raise self.error("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise self.error(f"its version is {version}, expected 2 or 3 in little endian")
        tensors, entries = self._number("Q"), self._number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string()
            self.metadata[key] = self._value(self._number("I"))
        found = [self._tensor() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise self.error(f"general.alignment is {alignment!r}, expected a positive number")
        begin = -(-self._at // alignment) * alignment
        self.tensors = {one[0]: self._stored(*one, begin) for one in found}

    def error(self, reason: str) -> ArgumentValueError:
        return ArgumentValueError(f"{self.path}: {reason}")

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """A value of the metadata, which has to be there."""
        if key not in self.metadata:
            raise self.error(f"its metadata has no {key}")
        value = self.metadata[key]
        if not isinstance(value, kind):
            raise self.error(f"{key} is a {type(value).__name__}, which it cannot be")
        return value

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > self._size:
            raise self.error(f"it ends after {self._size} bytes, inside its header")
        taken = self._bytes[self._at : end]
        self._at = end
        return taken

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0]

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.error(f"its metadata has a value of the unknown kind {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind in _SCALARS:
            layout = struct.Struct(f"<{_SCALARS[kind]}")
            return [x for (x,) in layout.iter_unpack(self._take(count * layout.size))]
        if kind != _STRING:
            raise self.error(f"its metadata has an array of the unknown kind {kind}")
        return [self._string() for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.error(f"{name} has {dimensions} dimensions, expected 1 to 4")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _stored(
        self, name: str, shape: tuple[int, ...], kind: int, offset: int, begin: int
    ) -> Stored:
        if kind not in FORMATS:
            raise self.error(f"{name} has the format {kind}, which is unknown")
        format_ = FORMATS[kind]
        if not shape[-1] or shape[-1] % format_.numbers:
            raise self.error(
                f"{name} has rows of {shape[-1]}, expected a multiple of {format_.numbers}"
                f" ({format_.name})"
            )
        rows, size = math.prod(shape[:-1]), shape[-1] // format_.numbers * format_.size
        if begin + offset + rows * size > self._size:
            raise self.error(f"it ends after {self._size} bytes, inside {name}")
        flat = (
            torch.frombuffer(self._bytes, dtype=torch.uint8, count=rows * size,
                             offset=begin + offset)
            if rows else torch.empty(0, dtype=torch.uint8)
        )  # fmt: skip
        return Stored(name, format_, shape, flat.view(rows, size))
