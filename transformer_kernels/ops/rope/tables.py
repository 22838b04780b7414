# SPDX-License-Identifier: MIT
"""Tables of cosines and sines: the frequencies of models, and their scaling for longer contexts.

Frequency f of R / 2 is ``base ** (-2 f / R)``. Its wavelength is ``2 pi / frequency``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_choice,
    as_flag,
    as_integer,
    as_number,
)
from .._public import explained

_OP = "rope_tables"


def _above(least: float, name: str, value: Any) -> float:
    number = float(as_number(_OP, name, value))
    if not (math.isfinite(number) and number > least):
        raise ArgumentValueError(
            f"{_OP}: {name} is {number:g}, expected a finite number above {least:g}"
        )
    return number


def _number(scaling: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = scaling.get(name)
    if value is None:
        value = default
    if value is None:
        raise ArgumentValueError(
            f"{_OP}: scaling has no {name!r}, expected one with {_kind(scaling)!r}"
        )
    return _above(0, f"scaling[{name!r}]", value)


def _kind(scaling: Mapping[str, Any]) -> Any:
    names = (scaling.get(key) for key in ("rope_type", "type"))
    return next((name for name in names if name is not None), "default")


def _default(frequencies: Tensor, *_: Any) -> tuple[Tensor, float]:
    return frequencies, 1.0


def _linear(frequencies: Tensor, scaling: Mapping[str, Any], *_: Any) -> tuple[Tensor, float]:
    """Linear scaling (Chen et al. 2023, arXiv:2306.15595)."""
    return frequencies / _number(scaling, "factor"), 1.0


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any], *_: Any) -> tuple[Tensor, float]:
    """Llama 3.1's scaling (arXiv:2407.21783): long wavelengths are scaled, short ones kept, and
    those between are mixed in proportion to the inverse of the wavelength."""
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
    times in the original context are kept, those that turn less than ``beta_slow`` times are
    scaled, and those between are mixed linearly in the index. Cosines and sines are multiplied by
    the attention factor."""
    factor = _number(scaling, "factor")
    context = _number(scaling, "original_max_position_embeddings")

    def index_of(turns: float) -> float:
        return rotary_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = index_of(_number(scaling, "beta_fast", 32.0))
    high = index_of(_number(scaling, "beta_slow", 1.0))
    truncate = scaling.get("truncate")
    if truncate is None or as_flag(_OP, "scaling['truncate']", truncate):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    index = torch.arange(frequencies.numel(), dtype=torch.float64, device=frequencies.device)
    scaled = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    mixed = frequencies * (1 - scaled + scaled / factor)
    return mixed, _attention_factor(scaling, factor)


def _attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    """The attention factor: the paper's by default; DeepSeek's models give two scales of its
    logarithm."""
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    for name, other in (("mscale", "mscale_all_dim"), ("mscale_all_dim", "mscale")):
        if scaling.get(name) is not None and scaling.get(other) is None:
            raise ArgumentValueError(f"{_OP}: scaling has no {other!r}, expected one with {name!r}")
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return grown(_number(scaling, "mscale")) / grown(_number(scaling, "mscale_all_dim"))
    return grown(1.0)


class _Scaling(NamedTuple):
    scale: Callable[..., tuple[Tensor, float]]
    keys: tuple[str, ...] = ()  # keys of this kind only


_SCALINGS = {
    "default": _Scaling(_default),
    "linear": _Scaling(_linear, ("factor",)),
    "llama3": _Scaling(
        _llama3,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
    "yarn": _Scaling(
        _yarn,
        (
            "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
            "attention_factor", "mscale", "mscale_all_dim",
        ),
    ),
}  # fmt: skip
_KEYS_OF_ALL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def _check_keys(scaling: Mapping[str, Any]) -> None:
    """Raises where a key would be ignored; a key of None counts as absent."""
    kind = _kind(scaling)
    taken = (*_KEYS_OF_ALL, *_SCALINGS[kind].keys)
    for key in scaling:
        if key in taken or (scaling[key] is None and _is_known(key)):
            continue
        if _is_known(key):
            raise ArgumentValueError(
                f"{_OP}: scaling has {key!r}, expected none with the rope_type {kind!r}"
            )
        if key == "mrope_section":
            raise ArgumentValueError(
                f"{_OP}: scaling has 'mrope_section', expected none (sections of rope() are that)"
            )
        close = difflib.get_close_matches(str(key), taken, 1)
        meant = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(taken)}"
        raise ArgumentValueError(f"{_OP}: scaling has an unknown key {key!r}, {meant}")
    if scaling.get("type") not in (None, kind):
        raise ArgumentValueError(
            f"{_OP}: scaling['type'] is {scaling['type']!r}, expected {kind!r} (its rope_type)"
        )


def _is_known(key: Any) -> bool:
    return key in _KEYS_OF_ALL or any(key in scaling.keys for scaling in _SCALINGS.values())


def base_of(base: float | None, scaling: Mapping[str, Any] | None) -> float:
    """The base, from the call or from ``scaling``; if both are given they must agree."""
    theta = scaling.get("rope_theta") if isinstance(scaling, Mapping) else None
    if base is None:
        name, base = ("base", 10000.0) if theta is None else ("scaling['rope_theta']", theta)
    else:
        name = "base"
    number = _above(1, name, base)
    if theta is not None and as_number(_OP, "scaling['rope_theta']", theta) != number:
        raise ArgumentValueError(
            f"{_OP}: scaling['rope_theta'] is {theta!r}, expected {number:g} (base)"
        )
    return number


def _check_partial(scaling: Mapping[str, Any]) -> None:
    share = scaling.get("partial_rotary_factor")
    if share is not None and as_number(_OP, "scaling['partial_rotary_factor']", share) != 1:
        raise ArgumentValueError(
            f"{_OP}: scaling['partial_rotary_factor'] is {share!r}, expected 1 or none (rotary_dim"
            " says how much of a head is rotated)"
        )


def frequencies(
    rotary_dim: int,
    base: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, float]:
    """Computes the R / 2 frequencies in float64, and the factor of cosines and sines."""
    rotary_dim = as_integer(_OP, "rotary_dim", rotary_dim)
    if rotary_dim < 2 or rotary_dim % 2:
        raise ArgumentValueError(
            f"{_OP}: rotary_dim is {rotary_dim}, expected an even number of 2 or more"
        )
    scaling = {} if scaling is None else scaling
    if not isinstance(scaling, Mapping):
        raise ArgumentTypeError(f"{_OP}: scaling is {scaling!r}, expected a mapping or None")
    chosen = as_choice(_OP, "scaling['rope_type']", _kind(scaling), _SCALINGS)
    _check_keys(scaling)
    _check_partial(scaling)
    base = base_of(base, scaling)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    return chosen.scale(base**-exponents, scaling, rotary_dim, base)


@explained
def rope_tables(
    max_positions: int,
    rotary_dim: int,
    base: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes cosines and sines for :func:`rope`, in float64 and rounded once.

    Args:
        max_positions: P; positions are 0 to P - 1.
        rotary_dim: R, even: the number of a head's elements that are rotated.
        base: base of the frequencies ``base ** (-2 f / R)``; by default the ``rope_theta`` of
            ``scaling``, or 10000.
        scaling: scaling of the frequencies, with the keys of Hugging Face's ``rope_scaling``: a
            ``rope_type`` of ``"default"``, ``"linear"``, ``"llama3"`` or ``"yarn"``, a ``factor``,
            and

            - llama3: ``low_freq_factor``, ``high_freq_factor``,
              ``original_max_position_embeddings``;
            - yarn: ``original_max_position_embeddings``, and optionally ``beta_fast`` (32),
              ``beta_slow`` (1), ``truncate`` (True), and ``attention_factor`` or ``mscale`` with
              ``mscale_all_dim``;
            - any: ``rope_theta``, the base, and a ``partial_rotary_factor`` of 1.

            Keys that are none of these, or that the ``rope_type`` does not use, are refused.
        dtype: dtype of the tables.
        device: device of the tables.

    Returns:
        cos, sin: (P, R / 2).

    >>> cos, sin = tfk.functional.rope_tables(2048, 64, base=500000.0)
    >>> cos.shape
    torch.Size([2048, 32])
    """
    positions = as_integer(_OP, "max_positions", max_positions)
    if positions < 0:
        raise ArgumentValueError(f"{_OP}: max_positions is {positions}, expected 0 or more")
    turns, factor = frequencies(rotary_dim, base, scaling, device)
    at = torch.arange(positions, dtype=torch.float64, device=device)
    angles = torch.outer(at, turns)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
