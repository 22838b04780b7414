# SPDX-License-Identifier: MIT
"""Arguments that are a number or a tensor with one for each sequence."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_integer,
    as_number,
    dtype_name,
    shape_text,
)
from . import _formula
from ._weights import COLDEST

_MOST_SEED = 2**63 - 1
_MOST_TOKENS = 2**20  # of a vocabulary


class _Parameter(NamedTuple):
    neutral: float  # with which a stage changes nothing
    least: float
    most: float
    stage: int
    needs_more: bool = False  # than the least

    @property
    def bounds(self) -> str:
        if math.isfinite(self.most):
            return f"a number from {self.least:g} to {self.most:g}"
        if not math.isfinite(self.least):
            return "a finite number"
        return "a finite number above 0" if self.needs_more else "a finite number, 0 or above"


_PARAMETERS = {  # in the order of SamplingParameters
    "temperature": _Parameter(1.0, 0.0, math.inf, _formula.DRAW),
    "top_k": _Parameter(0.0, 0.0, math.inf, _formula.TOP_K),
    "top_p": _Parameter(1.0, 0.0, 1.0, _formula.TOP_P),
    "min_p": _Parameter(0.0, 0.0, 1.0, _formula.MIN_P),
    "typical_p": _Parameter(1.0, 0.0, 1.0, _formula.TYPICAL_P),
    "repetition_penalty": _Parameter(1.0, 0.0, math.inf, _formula.PENALTIES, True),
    "presence_penalty": _Parameter(0.0, -math.inf, math.inf, _formula.PENALTIES),
    "frequency_penalty": _Parameter(0.0, -math.inf, math.inf, _formula.PENALTIES),
}
_MOST_FLOAT32 = torch.finfo(torch.float32).max


def check_one_each(op: str, name: str, x: Tensor, batch: int, device: torch.device) -> None:
    if x.device != device:
        raise ArgumentValueError(f"{op}: {name} is on {x.device}, expected {device}")
    if x.shape != (batch,):
        raise ArgumentValueError(
            f"{op}: {name} has shape {shape_text(x)}, expected ({batch},) (one for each sequence)"
        )


def _number(op: str, name: str, given: Any) -> float:
    """A parameter that is a number, in the range of float32."""
    parameter = _PARAMETERS[name]
    if given is None:
        return parameter.neutral
    if name == "top_k":
        given = min(as_integer(op, name, given), _MOST_TOKENS)
    number = float(as_number(op, name, given))
    is_low = number < parameter.least or (parameter.needs_more and number == parameter.least)
    if is_low or not number <= parameter.most or math.isinf(number) or math.isnan(number):
        raise ArgumentValueError(f"{op}: {name} is {number:g}, expected {parameter.bounds}")
    return max(-_MOST_FLOAT32, min(number, _MOST_FLOAT32))


@functools.lru_cache(maxsize=64)
def _row_of(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32, device=device)


def parameters_of(
    op: str, given: Mapping[str, Any], batch: int, device: torch.device
) -> tuple[Tensor, int]:
    """The parameters, (B, 8) or one row of all, and the stages that change something."""
    numbers: dict[str, float] = {}
    tensors: dict[str, Tensor] = {}
    stages = 0
    for name, parameter in _PARAMETERS.items():
        value = given[name]
        if isinstance(value, Tensor) and value.dim() > 0:
            check_one_each(op, name, value, batch, device)
            tensors[name] = value.to(torch.float32)
        else:
            numbers[name] = _number(op, name, value)
        if name in tensors or numbers[name] != parameter.neutral:
            stages |= parameter.stage
    if "temperature" not in tensors:
        draws = numbers["temperature"] >= COLDEST
        stages = stages | _formula.DRAW if draws else stages & ~_formula.DRAW
    if not tensors:
        return _row_of(tuple(numbers.values()), device), stages
    columns = [
        tensors[name] if name in tensors else torch.full((batch,), numbers[name], device=device)
        for name in _PARAMETERS
    ]
    return torch.stack(columns, 1), stages


def integers_of(op: str, name: str, given: Any, batch: int, device: torch.device) -> Tensor:
    """An integer of each sequence, (B), int64."""
    if not isinstance(given, Tensor) or given.dim() == 0:
        number = as_integer(op, name, given.item() if isinstance(given, Tensor) else given)
        return torch.full((batch,), number, dtype=torch.int64, device=device)
    check_one_each(op, name, given, batch, device)
    if given.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(
            f"{op}: {name} is {dtype_name(given.dtype)}, expected int32 or int64"
        )
    return given.long()


def seeds_of(op: str, seed: Any, batch: int, device: torch.device) -> Tensor:
    """A seed of each sequence, (B), int64."""
    if seed is None:
        return torch.randint(_MOST_SEED, (batch,), dtype=torch.int64, device=device)
    if isinstance(seed, Tensor):
        return integers_of(op, "seed", seed, batch, device)
    first = as_integer(op, "seed", seed)
    if not 0 <= first <= _MOST_SEED - batch:
        raise ArgumentValueError(f"{op}: seed is {first}, expected 0 to {_MOST_SEED - batch}")
    return torch.arange(first, first + batch, dtype=torch.int64, device=device)
