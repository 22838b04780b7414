# SPDX-License-Identifier: MIT
"""Masks for Hugging Face's Transformers: those of its ``sdpa``, with a note where one is a band."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from ..ops.attention._transformers import Band, mark_band


def attention_mask(*arguments: Any, **options: Any) -> Tensor | None:
    """Makes the mask (B, 1, Tq, Tk) of a forward pass, true where a key is seen; None where
    causality alone, or nothing, hides keys.

    Transformers writes out the mask of a sliding window, and that of a prompt behind a cache. The
    kernels need no mask for either, so it is noted which band of keys it shows.
    """
    mask: Tensor | None = sdpa_mask(*arguments, **options)
    if mask is None or arguments or torch.compiler.is_compiling():
        return mask
    band = _band(**options)
    return mask if band is None else mark_band(mask, band)


def _band(
    q_length: int,
    kv_length: int,
    mask_function: Any = causal_mask_function,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    local_size: int | None = None,
    attention_mask: Tensor | None = None,
    **_options: Any,
) -> Band | None:
    """The band that a mask with these arguments shows; None where it shows other keys."""
    if not isinstance(q_offset, int) or not isinstance(kv_offset, int):
        return None
    if is_same_function(mask_function, causal_mask_function):
        window = (-1, 0)
    elif local_size is not None and is_same_function(
        mask_function, sliding_window_causal_mask_function(local_size)
    ):
        window = (local_size - 1, 0)
    else:
        return None
    first = q_offset - kv_offset  # the key at the position of the first query
    if first not in (0, kv_length - q_length) or not _shows_all(
        attention_mask, kv_offset, q_offset + q_length
    ):
        return None
    return Band(window, top_left=first == 0)


def _shows_all(padding: Tensor | None, begin: int, end: int) -> bool:
    """Whether no key of these positions is padding. Later keys are hidden by causality."""
    if padding is None:
        return True
    return padding.shape[-1] >= end and bool(padding[:, begin:end].all())


def is_same_function(a: Any, b: Any) -> bool:
    """Whether two functions have the same code and, all the way down, the same closures."""
    code: CodeType | None = getattr(a, "__code__", None)
    if code is None or code is not getattr(b, "__code__", None):
        return a is b
    cells = zip(a.__closure__ or (), b.__closure__ or (), strict=True)
    return all(_is_same_value(x.cell_contents, y.cell_contents) for x, y in cells)


def _is_same_value(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_is_same_value, a, b))
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return is_same_function(a, b)
