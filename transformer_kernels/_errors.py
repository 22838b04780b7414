# SPDX-License-Identifier: MIT
"""Exceptions of bad arguments.

Each class derives from the built-in exception for the mistake and from the exception that PyTorch
raises for it, so that ``except`` clauses written for ``torch.nn.functional`` keep working.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar

import torch

Choice = TypeVar("Choice")

# C++ takes tensors of up to this many dimensions.
MAX_RANK = 8
_INT64 = 1 << 63


class ArgumentValueError(ValueError, RuntimeError):
    """A shape, size, device or number that the op cannot take."""


class ArgumentIndexError(ArgumentValueError, IndexError):
    """A dimension or an index out of range."""


class ArgumentTypeError(TypeError, NotImplementedError):
    """A dtype or a Python type that the op cannot take."""


FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES_OF_CPP = (
    *FLOATING, torch.bool, torch.int32, torch.int64, torch.int8, torch.uint8, torch.float8_e4m3fn,
    torch.float8_e5m2,
)  # fmt: skip
_NUMPY_BOOLS = ("bool_", "bool")  # the name before NumPy 2, and since
_KINDS = {
    "ValueError: ": ArgumentValueError,
    "TypeError: ": ArgumentTypeError,
    "IndexError: ": ArgumentIndexError,
}


def check_tensors(op: str, tensors: Mapping[str, Any], *optional: str) -> None:
    """Checks that arguments are tensors; those named in ``optional`` may be None."""
    for name, value in tensors.items():
        if not (isinstance(value, torch.Tensor) or (value is None and name in optional)):
            raise ArgumentTypeError(f"{op}: {name} is {type(value).__name__}, expected a Tensor")


def check_kind(op: str, name: str, value: Any, kind: type | tuple[type, ...], words: str) -> None:
    """Checks that an argument is of a class; ``words`` say what that is."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{op}: {name} is {type(value).__name__}, expected {words}")


def check_call(op: str, name: str, value: Any) -> None:
    if not callable(value):
        raise ArgumentTypeError(f"{op}: {name} is {shown(value)}, expected a function")


def shown(value: Any) -> str:
    """A value as messages show it; an array is shown as the name of its class."""
    return type(value).__name__ if hasattr(value, "shape") else repr(value)


def check_number(op: str, name: str, value: Any) -> None:
    if type(value) in (float, int):
        return
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ArgumentTypeError(
                f"{op}: {name} is a tensor of {value.numel()} elements, expected a number"
            )
    elif not isinstance(value, (Real, torch.SymInt, torch.SymFloat)):
        raise ArgumentTypeError(f"{op}: {name} is {shown(value)}, expected a number")


def as_number(op: str, name: str, value: Any) -> Any:
    """Converts a number of any type to a float, or returns a symbolic number as it is."""
    check_number(op, name, value)
    return value if isinstance(value, torch.SymFloat) else float(value)


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of any type, or a symbolic integer; a bool is not."""
    if type(value) is int:
        return True
    return type(value) is not bool and isinstance(value, (Integral, torch.SymInt))


def as_integer(op: str, name: str, value: Any) -> Any:
    """Converts an integer of any type to an int, or returns a symbolic integer as it is."""
    if not is_integer(value):
        raise ArgumentTypeError(f"{op}: {name} is {shown(value)}, expected an int")
    if isinstance(value, torch.SymInt):
        return value
    if not -_INT64 <= value < _INT64:
        raise ArgumentValueError(f"{op}: {name} is {value}, expected an int64")
    return int(value)


def as_count(op: str, name: str, value: Any, least: int = 1) -> int:
    """An integer of any type, of at least ``least``, as an int."""
    if type(value) is int and least <= value < _INT64:
        return value
    number = as_integer(op, name, value)
    if number < least:
        raise ArgumentValueError(f"{op}: {name} is {number}, expected at least {least}")
    return int(number)


def are_integers(values: Any, count: int) -> bool:
    """Whether ``values`` is a tuple or list of ``count`` integers."""
    sequence = isinstance(values, (tuple, list))
    return sequence and len(values) == count and all(map(is_integer, values))


def as_flag(op: str, name: str, value: Any) -> bool:
    if not isinstance(value, (bool, torch.SymBool)) and type(value).__name__ not in _NUMPY_BOOLS:
        raise ArgumentTypeError(f"{op}: {name} is {shown(value)}, expected True or False")
    return bool(value)


def as_choice(
    op: str,
    name: str,
    value: Any,
    choices: Mapping[str, Choice],
    no_word: type[Exception] = ArgumentValueError,
) -> Choice:
    """Looks up what a word stands for; raises ``no_word`` for a value that is none."""
    if isinstance(value, str) and value in choices:
        return choices[value]
    *most, last = map(repr, choices)
    raise (ArgumentValueError if isinstance(value, str) else no_word)(
        f"{op}: {name} is {shown(value)}, expected {', '.join(most)} or {last}"
    )


def as_device(op: str, device: Any) -> torch.device:
    """The device that is named; None is PyTorch's default."""
    try:
        return torch.empty(0, device=device).device
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ArgumentTypeError(
            f"{op}: device is {shown(device)}, expected one that PyTorch has"
        ) from error


def check_dtype(op: str, name: str, dtype: Any, *allowed: torch.dtype) -> None:
    """Checks that an argument is one of some dtypes, or None."""
    if dtype is not None and dtype not in allowed:
        expected = ", ".join(map(dtype_name, allowed))
        raise ArgumentTypeError(f"{op}: {name} is {shown(dtype)}, expected one of {expected}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def or_float32(dtype: torch.dtype) -> str:
    """For messages about a parameter that may be float32 beside ``dtype``: " or float32" or ""."""
    return " or float32" if dtype in (torch.float16, torch.bfloat16) else ""


def shape_text(x: torch.Tensor) -> str:
    return str(tuple(x.shape))


def check_same_device(op: str, x: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Checks devices in fake kernels: the dispatcher calls them if any one tensor is on meta."""
    for other in others:
        if other is not None and other.device != x.device:
            raise ArgumentValueError(f"{op}: a tensor is on {other.device}, expected {x.device}")


def not_floating(op: str, name: str, dtype: torch.dtype) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{op}: {name} is {dtype_name(dtype)}, expected a floating-point dtype"
    )


def check_known(op: str, name: str, x: torch.Tensor) -> None:
    """Checks that C++ has the dtype of a tensor that need not be floating-point."""
    if x.dtype not in DTYPES_OF_CPP:
        raise not_floating(op, name, x.dtype)


def check_floating(op: str, name: str, x: torch.Tensor) -> None:
    if x.dtype not in FLOATING:
        raise not_floating(op, name, x.dtype)
    if x.dim() == 0:
        raise ArgumentValueError(f"{op}: {name} has 0 dimensions, expected at least 1")


def check_indices(op: str, name: str, x: torch.Tensor) -> None:
    if x.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(f"{op}: {name} is {dtype_name(x.dtype)}, expected int32 or int64")


def is_ours(error: Any) -> TypeGuard[ArgumentValueError | ArgumentTypeError]:
    return isinstance(error, (ArgumentValueError, ArgumentTypeError))


def renamed(op: str, error: Exception, of_words: Callable[[str], str] = str) -> Exception:
    """The error of a check that ``op`` asked of another op."""
    words = str(error).partition(": ")[2]
    return type(error)(f"{op}: {of_words(words)}")


def translate(op: str, error: Exception) -> Exception:
    """The exception of ours behind ``error``: named in the text of a C++ check, or replaced by one
    of PyTorch's. Returns ``error`` itself where there is none."""
    if is_ours(error):
        return error
    for source in (error.__cause__, error.__context__):
        if is_ours(source):
            return source
    message = str(error)
    for prefix, kind in _KINDS.items():
        _, found, rest = message.partition(prefix)
        if found:
            first_line = rest.splitlines()[0]
            head, _, detail = first_line.partition(": ")
            return kind(f"{op}: {detail}" if detail and " " not in head else first_line)
    return error
