# SPDX-License-Identifier: MIT
"""Tables of cosines and sines: the frequencies of models, and how they are scaled for more context.

Frequency f of R / 2 is ``base ** (-2 f / R)``. Its wavelength is ``2 pi / frequency``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, as_integer, as_number

_OP = "rope_tables"


def _number(scaling: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = scaling.get(name)
    if value is None:
        value = default
    if value is None:
        raise ArgumentValueError(
            f"{_OP}: scaling has no {name!r}, expected one with {_kind(scaling)!r}"
        )
    number = float(as_number(_OP, f"scaling[{name!r}]", value))
    if not (math.isfinite(number) and number > 0):
        raise ArgumentValueError(
            f"{_OP}: scaling[{name!r}] is {number:g}, expected a finite number above 0"
        )
    return number


def _kind(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type", scaling.get("type", "default"))


def _default(frequencies: Tensor, *_: Any) -> tuple[Tensor, float]:
    return frequencies, 1.0


def _linear(frequencies: Tensor, scaling: Mapping[str, Any], *_: Any) -> tuple[Tensor, float]:
    """Chen et al. 2023, arXiv:2306.15595."""
    return frequencies / _number(scaling, "factor"), 1.0


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any], *_: Any) -> tuple[Tensor, float]:
    """Llama 3.1 (arXiv:2407.21783): long wavelengths are scaled, short ones kept, and those between
    are mixed in proportion to the inverse of the wavelength."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    context = _number(scaling, "original_max_position_embeddings")
    if not low < high:
        raise ArgumentValueError(
            f"{_OP}: scaling['high_freq_factor'] is {high:g}, expected more than {low:g}"
            " (low_freq_factor)"
        )
    kept = ((context * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor), 1.0


def _yarn(
    frequencies: Tensor, scaling: Mapping[str, Any], rotary_dim: int, base: float
) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): frequencies that turn more than ``beta_fast``
    times in the original context are kept, those that turn less than ``beta_slow`` times scaled,
    and what lies between is mixed linearly in the index. Cosines and sines grow by the attention
    factor."""
    factor = _number(scaling, "factor")
    context = _number(scaling, "original_max_position_embeddings")

    def index_of(turns: float) -> float:
        return rotary_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = index_of(_number(scaling, "beta_fast", 32.0))
    high = index_of(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    index = torch.arange(frequencies.numel(), dtype=torch.float64, device=frequencies.device)
    scaled = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    mixed = frequencies * (1 - scaled + scaled / factor)
    return mixed, _attention_factor(scaling, factor)


def _attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    """That of the paper by default; DeepSeek's models give two scales of its logarithm."""
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return grown(_number(scaling, "mscale")) / grown(_number(scaling, "mscale_all_dim"))
    return grown(1.0)


_SCALINGS: dict[str, Callable[..., tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def frequencies(
    rotary_dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, float]:
    """(R / 2) frequencies in float64, and the factor of cosines and sines."""
    rotary_dim = as_integer(_OP, "rotary_dim", rotary_dim)
    if rotary_dim < 2 or rotary_dim % 2:
        raise ArgumentValueError(
            f"{_OP}: rotary_dim is {rotary_dim}, expected an even number of 2 or more"
        )
    base = float(as_number(_OP, "base", base))
    if not (math.isfinite(base) and base > 1):
        raise ArgumentValueError(f"{_OP}: base is {base:g}, expected a finite number above 1")
    scaling = {} if scaling is None else scaling
    if not isinstance(scaling, Mapping):
        raise ArgumentTypeError(f"{_OP}: scaling is {scaling!r}, expected a mapping or None")
    if _kind(scaling) not in _SCALINGS:
        raise ArgumentValueError(
            f"{_OP}: scaling['rope_type'] is {_kind(scaling)!r}, expected one of"
            f" {', '.join(map(repr, _SCALINGS))}"
        )
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    return _SCALINGS[_kind(scaling)](base**-exponents, scaling, rotary_dim, base)


def rope_tables(
    max_positions: int,
    rotary_dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for :func:`rope`, computed in float64 and rounded once.

    Args:
        max_positions: P; positions are 0 to P - 1.
        rotary_dim: R, even: how many numbers of a head are rotated.
        base: of the frequencies ``base ** (-2 f / R)``.
        scaling: of the frequencies, with the keys of Hugging Face's ``rope_scaling``: a
            ``rope_type`` of ``"default"``, ``"linear"``, ``"llama3"`` or ``"yarn"``, a ``factor``,
            and

            - llama3: ``low_freq_factor``, ``high_freq_factor``,
              ``original_max_position_embeddings``;
            - yarn: ``original_max_position_embeddings``, and optionally ``beta_fast`` (32),
              ``beta_slow`` (1), ``truncate`` (True), and ``attention_factor`` or ``mscale`` with
              ``mscale_all_dim``.
        dtype: of the tables.
        device: of the tables.

    Returns:
        cos, sin: (P, R / 2).
    """
    positions = as_integer(_OP, "max_positions", max_positions)
    if positions < 0:
        raise ArgumentValueError(f"{_OP}: max_positions is {positions}, expected 0 or more")
    turns, factor = frequencies(rotary_dim, base, scaling, device)
    at = torch.arange(positions, dtype=torch.float64, device=device)
    angles = torch.outer(at, turns)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
