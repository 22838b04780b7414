# SPDX-License-Identifier: MIT
"""The faults that a tensor can have, and the place where one was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, dtype_name, shape_text

NUMBERS = ("nan", "inf")  # faults of elements
CHECKS = (*NUMBERS, "shape", "dtype", "device")


@dataclass(frozen=True)
class Expected:
    """The shape, dtype and device that an input or an output has to have; None is not checked.

    A size in ``shape`` is a number, None for any, or a name, which stands for the same number
    everywhere in one pass: ``Expected(("batch", "time", 512), torch.bfloat16)``.

    >>> model = torch.nn.Linear(8, 8)
    >>> expected = {":input": tfk.workbench.Expected(("batch", 8), torch.float32)}
    >>> bool(tfk.validate(model, torch.randn(4, 8), expected=expected))
    True
    """

    shape: tuple[int | str | None, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        sizes = self.shape if isinstance(self.shape, (tuple, list, type(None))) else (1.5,)
        if not all(isinstance(size, (int, str, type(None))) for size in sizes or ()):
            raise ArgumentTypeError(
                f"Expected: shape is {self.shape!r}, expected a tuple of ints, names or None"
            )
        if not isinstance(self.dtype, (torch.dtype, type(None))):
            raise ArgumentTypeError(f"Expected: dtype is {self.dtype!r}, expected a torch.dtype")


@dataclass(frozen=True)
class Fault:
    """The first fault that was found."""

    path: str  # of the module; "" is the model itself
    module: str  # class of the module
    where: str  # "input x", "output[0]", "parameter weight", "gradient of output"
    kind: str  # one of CHECKS, or "error" for an exception of the module
    detail: str  # in words
    count: int = 0  # bad elements
    total: int = 0  # elements
    first: tuple[int, ...] = ()  # index of the first bad element

    def __str__(self) -> str:
        return f"{self.path or 'the model'} ({self.module}): {self.where} {self.detail}"


class FaultError(ValueError):
    """Raised at the first fault, which is its attribute ``fault``."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def checked_names(op: str, checks: Iterable[str]) -> tuple[str, ...]:
    """Checks that each name in ``checks`` is one of CHECKS, and returns them."""
    if isinstance(checks, str) or not isinstance(checks, Iterable):
        raise ArgumentTypeError(f"{op}: checks is {checks!r}, expected names of checks")
    names = tuple(checks)
    for name in names:
        if name not in CHECKS:
            expected = ", ".join(map(repr, CHECKS))
            raise ArgumentValueError(f"{op}: checks has {name!r}, expected some of {expected}")
    return names


def bad_elements(
    x: Tensor, checks: Iterable[str], hides: bool = False
) -> tuple[str, Tensor] | None:
    """The kind of the first bad number, and a mask of the bad elements; None where there are none.

    In a tensor that ``hides``, such as a mask, minus infinity is no fault.
    """
    if not (x.is_floating_point() or x.is_complex()) or x.is_meta or x.layout is not torch.strided:
        return None
    tests = {"nan": torch.isnan, "inf": torch.isposinf if hides else torch.isinf}
    wanted = [kind for kind in NUMBERS if kind in checks]
    if not wanted or (not hides and bool(torch.isfinite(x).all())):  # one pass over a good tensor
        return None
    for kind in wanted:
        bad = tests[kind](x)
        if bool(bad.any()):
            return kind, bad
    return None


def numbers_fault(
    path: str, module: str, where: str, x: Tensor, checks: Iterable[str], hides: bool = False
) -> Fault | None:
    found = bad_elements(x.detach(), checks, hides)
    if found is None:
        return None
    kind, bad = found
    count = int(bad.sum())
    flat = int(bad.reshape(-1).to(torch.uint8).argmax())
    first = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), bad.shape))
    word = {"nan": "NaN", "inf": "infinity"}[kind]
    detail = f"has {count} {word} among {x.numel()} elements of {shape_text(x)}, the first at"
    return Fault(path, module, where, kind, f"{detail} {first}", count, x.numel(), first)


def form_fault(
    path: str,
    module: str,
    where: str,
    x: Tensor,
    expected: Expected,
    sizes: dict[str, int],
    checks: Iterable[str],
) -> Fault | None:
    """Checks shape, dtype and device against what is expected; ``sizes`` holds the named sizes so
    far."""
    words = {
        "shape": _shape_words(x, expected, sizes),
        "dtype": _dtype_words(x, expected),
        "device": _device_words(x, expected),
    }
    found = next((kind for kind in CHECKS if kind in checks and words.get(kind)), None)
    return None if found is None else Fault(path, module, where, found, str(words[found]))


def _shape_words(x: Tensor, expected: Expected, sizes: dict[str, int]) -> str | None:
    shape = expected.shape
    if shape is None:
        return None
    fits = len(shape) == x.dim()
    for size, actual in zip(shape, x.shape, strict=False) if fits else ():
        wanted = sizes.setdefault(size, actual) if isinstance(size, str) else size
        fits = fits and wanted in (None, actual)
    if fits:
        return None
    return f"has shape {shape_text(x)}, expected {_form(shape, sizes)}"


def _form(shape: tuple[int | str | None, ...], sizes: Mapping[str, int]) -> str:
    shown = []
    for size in shape:
        known = sizes.get(size) if isinstance(size, str) else None
        shown.append("any" if size is None else str(size) if known is None else f"{size}={known}")
    return f"({', '.join(shown)})"


def _dtype_words(x: Tensor, expected: Expected) -> str | None:
    if expected.dtype is None or x.dtype is expected.dtype:
        return None
    return f"is {dtype_name(x.dtype)}, expected {dtype_name(expected.dtype)}"


def _device_words(x: Tensor, expected: Expected) -> str | None:
    if expected.device is None:
        return None
    wanted = torch.device(expected.device)
    same = x.device.type == wanted.type and wanted.index in (None, x.device.index)
    return None if same else f"is on {x.device}, expected {wanted}"
